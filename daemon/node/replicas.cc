// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/replicas.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "daemon/base/failpoint.h"
#include "daemon/node/recovery.h"
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

}  // namespace

Replicas::Replicas(const v1::JobSpec& job, const v1::Plan& plan, uint32_t self,
                   std::span<const std::unique_ptr<OwnedState>> states, SlotThreads* slots, Peers* peers)
    : self_(self),
      on_(!plan.buddies().empty()),
      sync_(job.replication() == v1::REPLICATION_SYNC),
      states_(states),
      slots_(slots),
      peers_(peers),
      ward_(WardOf(plan, self)),
      mail_{Cargo::kState, {}, {}} {
  if (!on()) return;
  const uint32_t buddy = plan.buddies(static_cast<int>(self));
  for (std::vector<Message>& copy : kept_.messages) copy = MessagesOf(job, plan, self, buddy);
  if (ward_.has_value()) {
    for (std::vector<Message>& copy : copied_.messages) copy = MessagesOf(job, plan, *ward_, *ward_);
  }
  std::map<uint32_t, Place> place_of;  // by unit
  const std::vector<Message>& messages = kept_.messages.front();
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

// A connection that broke has ended it.
bool Replicas::underway() const { return sending_.has_value() && peers_->copies() != nullptr; }

void Replicas::Begin(uint64_t step) {
  PutBack();
  step_ = step;
  sending_ = kept_.steps.GiveWay(step);
  receiving_ = copied_.steps.GiveWay(step);
  std::swap(kept_.messages[*sending_], mail_.out);
  std::swap(copied_.messages[receiving_], mail_.in);
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
  if (!sending_.has_value()) return absl::OkStatus();
  absl::Status status = absl::AbortedError("the nodes are not connected");
  if (underway()) {
    peers_->copies()->Expect(deadline);
    AtFailpoint(Failpoint::kCopySent);
    status = peers_->CloseCopies();
  }
  if (status.ok()) {
    kept_.steps.Arrived(*sending_, step_);
    copied_.steps.Arrived(receiving_, step_);
  }
  PutBack();
  return status;
}

// What was on its way is not any more: it has ended, or the connections broke.
void Replicas::PutBack() {
  if (!sending_.has_value()) return;
  std::swap(kept_.messages[*sending_], mail_.out);
  std::swap(copied_.messages[receiving_], mail_.in);
  sending_.reset();
}

absl::Status Replicas::Exchange(uint64_t step, absl::Time deadline) {
  if (!on()) return absl::OkStatus();
  Begin(step);
  PackAll();
  return End(deadline);
}

void Replicas::TakePeers(Peers* peers) {
  if (underway()) peers_->Drop();
  PutBack();
  peers_ = peers;
}

void Replicas::Extend(uint64_t step) {
  kept_.steps.Extend(step);
  copied_.steps.Extend(step);
}

void Replicas::Forget() {
  kept_.steps.Forget();
  copied_.steps.Forget();
}

void Replicas::ForgetAfter(uint64_t step) {
  kept_.steps.ForgetAfter(step);
  copied_.steps.ForgetAfter(step);
}

void Replicas::Describe(v1::PeerReport& report) const {
  kept_.steps.Describe(*report.mutable_kept());
  copied_.steps.Describe(*report.mutable_copied());
}

void Replicas::Unpack(const std::vector<Message>& copy) {
  slots_->Run([&](size_t slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      OwnedUnit& unit = states_[slot]->mutable_unit(i);
      const Place& place = places_[slot][i];
      const std::byte* from = copy[place.message].bytes.data() + place.offset;
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
  const std::optional<size_t> copy = kept_.steps.Find(step);
  if (copy.has_value()) Unpack(kept_.messages[*copy]);
  return copy.has_value();
}

// The same messages as ever, in the other direction.
absl::Status Replicas::GiveBack(const std::vector<bool>& lost, uint64_t step, absl::Time deadline) {
  PutBack();
  const size_t copy = lost[self_] ? kept_.steps.GiveWay(step) : 0;
  const std::optional<size_t> wards = ward_.has_value() && lost[*ward_] ? copied_.steps.Find(step) : std::nullopt;
  Mail back{Cargo::kState, {}, {}};
  if (lost[self_]) std::swap(kept_.messages[copy], back.in);
  if (wards.has_value()) std::swap(copied_.messages[*wards], back.out);
  peers_->OpenCopies(back);
  peers_->copies()->Expect(deadline);
  const absl::Status status = peers_->CloseCopies();
  if (wards.has_value()) std::swap(copied_.messages[*wards], back.out);
  if (!lost[self_]) return status;
  std::swap(kept_.messages[copy], back.in);
  if (!status.ok()) return status;
  kept_.steps.Arrived(copy, step);
  Unpack(kept_.messages[copy]);
  return absl::OkStatus();
}

}  // namespace dmuon::node
