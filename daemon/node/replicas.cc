// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/replicas.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "daemon/base/failpoint.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/units.h"

namespace dmuon::node {
namespace {

// A unit's weight, each matrix's state, and how many updates have been applied to it.
uint64_t BytesOf(const v1::JobSpec& job, const v1::Unit& unit) {
  const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
  const v1::Group& group = job.groups(static_cast<int>(tensor.group()));
  return static_cast<uint64_t>(plan::StateBytes(group, plan::MatricesOf(tensor, wire::FromProto(unit.box())))) +
         sizeof(OwnedUnit::updates);
}

uint64_t CopyBytes(const v1::JobSpec& job, const v1::Plan& plan, uint32_t owner) {
  uint64_t bytes = 0;
  for (const v1::Unit& unit : plan.units()) {
    if (unit.owners(0).node() == owner) bytes += BytesOf(job, unit);
  }
  return bytes;
}

std::optional<uint32_t> WardOf(const v1::Plan& plan, uint32_t self) {
  const auto found = std::find(plan.buddies().begin(), plan.buddies().end(), self);
  if (found == plan.buddies().end()) return std::nullopt;
  return static_cast<uint32_t>(found - plan.buddies().begin());
}

template <typename Values>
void Put(const Values& values, std::byte*& to) {
  const size_t bytes = values.size() * sizeof(values[0]);
  std::memcpy(to, values.data(), bytes);
  to += bytes;
}

template <typename Values>
void Take(const std::byte*& from, Values& values) {
  const size_t bytes = values.size() * sizeof(values[0]);
  std::memcpy(values.data(), from, bytes);
  from += bytes;
}

void AddRange(uint64_t first, uint64_t last, google::protobuf::RepeatedPtrField<v1::StepRange>& ranges) {
  v1::StepRange& range = *ranges.Add();
  range.set_first(first);
  range.set_last(last);
}

}  // namespace

Replicas::Replicas(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self,
                   std::span<const std::unique_ptr<OwnedState>> states, SlotThreads* slots, Peers* peers)
    : self_(self),
      sync_(job.replication() == v1::REPLICATION_SYNC),
      states_(states),
      slots_(slots),
      peers_(peers),
      ward_(WardOf(plan, self)),
      mail_{Cargo::kState, {}, {}} {
  if (!on()) return;
  const uint32_t buddy = plan.buddies(static_cast<int>(self));
  for (Copy& copy : kept_) copy.messages = MessagesOf(job, plan, self, buddy);
  for (Copy& copy : copied_) copy.messages = MessagesOf(job, plan, *ward_, *ward_);
  std::map<uint32_t, Place> place_of;  // by unit
  const std::vector<Message>& messages = kept_.front().messages;
  for (size_t m = 0; m < messages.size(); ++m) {
    bytes_ += messages[m].bytes.size();
    for (const Piece& piece : messages[m].pieces) {
      place_of[piece.unit] = {m, piece.offset};
      unpacked_.Add(messages[m].bucket);
    }
  }
  for (const auto& state : states_) {
    std::vector<Place>& places = places_.emplace_back();
    for (size_t i = 0; i < state->size(); ++i) places.push_back(place_of.at(state->unit(i).index));
  }
}

// What comes goes to buffers that end here.
Replicas::~Replicas() {
  if (underway()) peers_->Drop();
}

uint64_t Replicas::BytesFor(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self) {
  const std::optional<uint32_t> ward = WardOf(plan, self);
  return ward.has_value() ? 2 * (CopyBytes(job, plan, self) + CopyBytes(job, plan, *ward)) : 0;
}

std::vector<Message> Replicas::MessagesOf(const v1::JobSpec& job, const v1::Plan& plan, uint32_t owner, uint32_t peer) {
  std::map<uint32_t, Message> by_bucket;
  std::map<uint32_t, size_t> bytes;
  for (int index = 0; index < plan.units_size(); ++index) {
    const v1::Unit& unit = plan.units(index);
    if (unit.owners(0).node() != owner) continue;
    Message& message = by_bucket[unit.bucket()];
    message.peer = peer;
    message.bucket = unit.bucket();
    Piece& piece = message.pieces.emplace_back();
    piece.unit = static_cast<uint32_t>(index);
    piece.offset = bytes[unit.bucket()];
    bytes[unit.bucket()] += BytesOf(job, unit);
  }
  std::vector<Message> messages;
  for (auto& [bucket, message] : by_bucket) {
    message.bytes.resize(bytes[bucket]);
    messages.push_back(std::move(message));
  }
  return messages;
}

// What is of `step` is sent again as it is; else the older one gives way.
Replicas::Copy& Replicas::OlderOf(std::array<Copy, 2>& copies, uint64_t step) {
  for (Copy& copy : copies) {
    if (copy.steps.Has(step)) return copy;
  }
  const bool first = copies[0].steps.empty() ||
                     (!copies[1].steps.empty() && copies[0].steps.last <= copies[1].steps.last);
  Copy& older = copies[first ? 0 : 1];
  older.steps = Steps();
  return older;
}

Replicas::Copy* Replicas::Find(std::array<Copy, 2>& copies, uint64_t step) {
  const auto found = std::find_if(copies.begin(), copies.end(), [&](const Copy& copy) { return copy.steps.Has(step); });
  return found == copies.end() ? nullptr : &*found;
}

// A connection that broke has ended it.
bool Replicas::underway() const { return sending_ != nullptr && peers_->copies() != nullptr; }

void Replicas::Begin(uint64_t step) {
  PutBack();
  step_ = step;
  sending_ = &OlderOf(kept_, step);
  receiving_ = &OlderOf(copied_, step);
  std::swap(sending_->messages, mail_.out);
  std::swap(receiving_->messages, mail_.in);
  unpacked_.Reset();
  peers_->OpenCopies(mail_);
}

void Replicas::Pack(size_t slot, size_t i, bool send) {
  const OwnedUnit& unit = states_[slot]->unit(i);
  Message& message = mail_.out[places_[slot][i].message];
  std::byte* to = message.bytes.data() + places_[slot][i].offset;
  Put(unit.weight, to);
  for (const OwnedMatrix& matrix : unit.matrices) {
    for (const std::vector<float>& values : matrix.state) Put(values, to);
  }
  Put(std::span(&unit.updates, 1), to);
  AtFailpoint(Failpoint::kCopyUnit);
  if (unpacked_.Done(message.bucket) && send) peers_->copies()->Send(message.bucket);
}

void Replicas::PackAll() {
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) Pack(slot, i, /*send=*/true);
  });
}

void Replicas::SendRest() {
  if (underway()) peers_->copies()->SendRest();
}

absl::Status Replicas::End(absl::Time deadline) {
  if (sending_ == nullptr) return absl::OkStatus();
  absl::Status status = absl::AbortedError("the nodes are not connected");
  if (underway()) {
    peers_->copies()->Expect(deadline);
    AtFailpoint(Failpoint::kCopySent);
    status = peers_->CloseCopies();
  }
  if (status.ok()) {
    for (Copy* const copy : {sending_, receiving_}) {
      if (!copy->steps.Has(step_)) copy->steps = {step_, step_};
    }
  }
  PutBack();
  return status;
}

// What was on its way is not any more: it has ended, or the connections broke.
void Replicas::PutBack() {
  if (sending_ == nullptr) return;
  std::swap(sending_->messages, mail_.out);
  std::swap(receiving_->messages, mail_.in);
  sending_ = receiving_ = nullptr;
}

absl::Status Replicas::Exchange(uint64_t step, absl::Time deadline) {
  if (!on()) return absl::OkStatus();
  Begin(step);
  PackAll();
  return End(deadline);
}

void Replicas::Extend(uint64_t step) {
  for (std::array<Copy, 2>* const copies : {&kept_, &copied_}) {
    for (Copy& copy : *copies) {
      if (!copy.steps.empty() && copy.steps.last + 1 == step) copy.steps.last = step;
    }
  }
}

void Replicas::Forget() {
  for (std::array<Copy, 2>* const copies : {&kept_, &copied_}) {
    for (Copy& copy : *copies) copy.steps = Steps();
  }
}

void Replicas::ForgetAfter(uint64_t step) {
  for (std::array<Copy, 2>* const copies : {&kept_, &copied_}) {
    for (Copy& copy : *copies) {
      copy.steps.last = std::min(copy.steps.last, step);
      if (copy.steps.empty()) copy.steps = Steps();
    }
  }
}

void Replicas::Describe(v1::PeerReport& report) const {
  for (const Copy& copy : kept_) {
    if (!copy.steps.empty()) AddRange(copy.steps.first, copy.steps.last, *report.mutable_kept());
  }
  for (const Copy& copy : copied_) {
    if (!copy.steps.empty()) AddRange(copy.steps.first, copy.steps.last, *report.mutable_copied());
  }
}

void Replicas::Unpack(const Copy& copy) {
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      OwnedUnit& unit = states_[slot]->mutable_unit(i);
      const Place& place = places_[slot][i];
      const std::byte* from = copy.messages[place.message].bytes.data() + place.offset;
      Take(from, unit.weight);
      for (OwnedMatrix& matrix : unit.matrices) {
        for (std::vector<float>& values : matrix.state) Take(from, values);
      }
      auto updates = std::span(&unit.updates, 1);
      Take(from, updates);
    }
  });
}

bool Replicas::GoBack(uint64_t step) {
  PutBack();
  const Copy* const copy = Find(kept_, step);
  if (copy != nullptr) Unpack(*copy);
  return copy != nullptr;
}

// The same messages as ever, in the other direction.
absl::Status Replicas::GiveBack(const std::vector<bool>& lost, uint64_t step, absl::Time deadline) {
  PutBack();
  Copy* const mine = lost[self_] ? &OlderOf(kept_, step) : nullptr;
  Copy* const wards = lost[*ward_] ? Find(copied_, step) : nullptr;
  Mail back{Cargo::kState, {}, {}};
  if (mine != nullptr) std::swap(mine->messages, back.in);
  if (wards != nullptr) std::swap(wards->messages, back.out);
  peers_->OpenCopies(back);
  peers_->copies()->Expect(deadline);
  const absl::Status status = peers_->CloseCopies();
  if (wards != nullptr) std::swap(wards->messages, back.out);
  if (mine == nullptr) return status;
  std::swap(mine->messages, back.in);
  if (!status.ok()) return status;
  mine->steps = {step, step};
  Unpack(*mine);
  return absl::OkStatus();
}

std::optional<uint64_t> Replicas::newest() const {
  std::optional<uint64_t> newest;
  for (const Copy& copy : kept_) {
    if (!copy.steps.empty() && (!newest.has_value() || *newest < copy.steps.last)) newest = copy.steps.last;
  }
  return newest;
}

}  // namespace dmuon::node
