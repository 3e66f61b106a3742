// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/reduction.h"

#include <algorithm>
#include <map>
#include <utility>

#include "daemon/node/gradient_sources.h"
#include "daemon/node/stage_timer.h"
#include "wire/error.h"

namespace dmuon::node {
namespace {

// Between two looks at words that workers set in memory: far below the time that a bucket takes to send.
constexpr absl::Duration kLook = absl::Milliseconds(1);

}  // namespace

Reduction::Reduction(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes,
                     uint32_t self, const WorkerBoxes* workers,
                     std::span<const std::unique_ptr<OwnedState>> states,
                     kernels::Backend* backend, SlotThreads* slots, Peers* peers, bool overlap)
    : skip_missing_(job.missing_gradient() == v1::MISSING_GRADIENT_SKIP),
      overlap_(overlap),
      workers_(workers),
      states_(states),
      backend_(backend),
      slots_(slots),
      peers_(peers),
      gradients_(MailOf(job, plan, routes.gradients(), Cargo::kGradient, self)),
      buckets_(BucketsOf(plan)),
      missing_(workers->tensors()),
      none_missing_(workers->tensors()) {
  size_t turn = 0;
  for (Message& message : gradients_.out) {
    Bucket& bucket = buckets_[message.bucket];
    for (const Piece& piece : message.pieces) {
      const wire::Box unit = wire::FromProto(plan.units(static_cast<int>(piece.unit)).box());
      std::vector<uint32_t> ranks = RanksOf(piece.tensor, unit, piece.box, *workers);
      AddNeeds(bucket, piece.tensor, ranks);
      bucket.out.push_back({&message, &piece, std::move(ranks), turn++ % slots->size()});
      unpacked_.Add(message.bucket);
    }
  }
  Connect(self);
  for (Bucket& bucket : buckets_) {
    std::sort(bucket.needs.begin(), bucket.needs.end());
    bucket.needs.erase(std::unique(bucket.needs.begin(), bucket.needs.end()), bucket.needs.end());
  }
}

// What comes goes to buffers that end here.
Reduction::~Reduction() {
  if (IsOpen() && peers_ != nullptr) peers_->Drop();
}

// The units to what comes in.
void Reduction::Connect(uint32_t self) {
  std::map<uint32_t, std::vector<Arrival>> arrivals;  // by unit
  for (const Message& message : gradients_.in) {
    for (const Piece& piece : message.pieces) arrivals[piece.unit].push_back({&message, &piece});
  }
  for (size_t slot = 0; slot < states_.size(); ++slot) {
    for (size_t i = 0; i < states_[slot]->size(); ++i) {
      OwnedUnit& unit = states_[slot]->mutable_unit(i);
      const std::vector<Arrival>& from_others = arrivals[unit.index];
      unit.sources = SourcesOf(unit.tensor, unit.box(), self, *workers_, from_others);
      buckets_[unit.bucket].in.push_back({slot, i, from_others.empty()});
      if (!from_others.empty()) continue;
      for (const GradientSource& source : unit.sources) {
        for (const GradientTerm& term : source.terms) {
          AddNeeds(buckets_[unit.bucket], unit.tensor, term.ranks);
        }
      }
    }
  }
}

void Reduction::AddNeeds(Bucket& bucket, uint32_t tensor, std::span<const uint32_t> ranks) {
  for (const uint32_t rank : ranks) bucket.needs.push_back({tensor, rank});
}

void Reduction::Open(uint64_t step) {
  step_ = step;
  Begin();
}

void Reduction::Begin() {
  unpacked_.Reset();
  ahead_ = StepReport();
  for (Bucket& bucket : buckets_) {
    bucket.ready = 0;
    bucket.done = false;
    if (!bucket.out.empty() || !bucket.in.empty()) ++ahead_.buckets;
  }
  stamps_ = workers_->SubmissionStamps();
  if (peers_ != nullptr) peers_->Open(gradients_);
  open_ = true;
}

void Reduction::TakePeers(Peers* peers) {
  if (IsOpen() && peers_ != nullptr) peers_->Drop();
  open_ = false;
  peers_ = peers;
}

// A connection that broke has closed what was open.
bool Reduction::IsOpen() const { return open_ && (peers_ == nullptr || mail() != nullptr); }

bool Reduction::outdated() const {
  return IsOpen() && ahead_.buckets_ahead > 0 && stamps_ != workers_->SubmissionStamps();
}

absl::Status Reduction::GiveUp(absl::Time deadline) {
  const bool open = std::exchange(open_, false) && mail() != nullptr;
  if (!open) return absl::OkStatus();
  mail()->Expect(deadline);
  return peers_->Close();
}

absl::Status Reduction::StartOver(absl::Time deadline) {
  if (!IsOpen()) return absl::OkStatus();
  DMUON_RETURN_IF_ERROR(GiveUp(deadline));
  const uint64_t again = ahead_.buckets_ahead;
  Begin();
  ahead_.buckets_again = again;
  return absl::OkStatus();
}

bool Reduction::IsReady(Bucket& bucket) const {
  const auto is_ready = [this](const Word& word) {
    return workers_->IsReady(word.rank, word.tensor, step_);
  };
  while (bucket.ready < bucket.needs.size() && is_ready(bucket.needs[bucket.ready])) ++bucket.ready;
  return bucket.ready == bucket.needs.size();
}

// Backward computes gradients in about the reverse order of the forward, which is that of the buckets.
absl::Duration Reduction::Ahead() {
  if (!overlap_ || !IsOpen() || !workers_->AllAttached()) return absl::InfiniteDuration();
  if (std::vector<WorkerBoxes::SubmissionStamp> stamps = workers_->SubmissionStamps(); stamps != stamps_) {
    if (ahead_.buckets_ahead > 0) return absl::InfiniteDuration();  // all of it starts over
    for (Bucket& bucket : buckets_) bucket.ready = 0;
    stamps_ = std::move(stamps);
  }
  bool left = false;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    if (bucket->done || bucket->needs.empty()) continue;
    if (!IsReady(*bucket)) {
      left = true;
      continue;
    }
    RunSlots(*slots_, ahead_, [&](size_t slot, SlotWork& work) {
      StageTimer timer(work.seconds);
      Pack(slot, *bucket, none_missing_, /*send=*/true);
      for (const Incoming& incoming : bucket->in) {
        if (incoming.slot == slot && incoming.local) states_[slot]->Collect(incoming.unit, *workers_, {});
      }
      timer.Charge(Stage::kCollect);
    }).IgnoreError();
    bucket->done = true;
    ++ahead_.buckets_ahead;
    return absl::ZeroDuration();
  }
  return left ? kLook : absl::InfiniteDuration();
}

absl::Status Reduction::Finish(bool collect, absl::Time deadline, StepReport& report) {
  if (!IsOpen()) Begin();
  if (peers_ != nullptr) mail()->Expect(deadline);
  const auto run = [&](bool pack, bool sum) {
    if (!collect) return;
    RunSlots(*slots_, report, [&](size_t slot, SlotWork& work) {
      StageTimer timer(work.seconds);
      for (const Bucket& bucket : buckets_) {
        if (pack && !bucket.done) Pack(slot, bucket, missing_, overlap_);
      }
      timer.Charge(Stage::kCollect);
      if (sum) SumRest(slot, overlap_, work);
    }).IgnoreError();
  };
  run(true, overlap_);
  StageTimer timer(report.stage_seconds);
  open_ = false;
  if (peers_ != nullptr) DMUON_RETURN_IF_ERROR(peers_->Close());
  timer.Charge(Stage::kReduce);
  if (!overlap_) run(false, true);
  report.buckets = ahead_.buckets;
  report.buckets_ahead = ahead_.buckets_ahead;
  report.buckets_again = ahead_.buckets_again;
  for (size_t stage = 0; stage < report.stage_seconds.size(); ++stage) {
    report.stage_seconds[stage] += ahead_.stage_seconds[stage];
  }
  return absl::OkStatus();
}

void Reduction::Pack(size_t slot, const Bucket& bucket, const Missing& missing, bool send) {
  for (const Outgoing& outgoing : bucket.out) {
    if (outgoing.slot != slot) continue;
    PackPiece(outgoing, missing[outgoing.piece->tensor]);
    if (unpacked_.Done(outgoing.message->bucket) && send) mail()->Send(outgoing.message->bucket);
  }
}

void Reduction::PackPiece(const Outgoing& outgoing, const MissingRanks& missing) const {
  const Piece& piece = *outgoing.piece;
  if (skip_missing_ && !missing.empty()) return;
  const auto elements = static_cast<size_t>(piece.box.elements());
  std::byte* const to = outgoing.message->at(piece);
  const auto sum_into = [&](std::span<float> sum) {
    SumRanks(piece.tensor, piece.box, outgoing.ranks, missing, *workers_, *backend_, Layout(piece.box), sum);
  };
  if (piece.dtype == v1::DTYPE_FLOAT32) return sum_into({reinterpret_cast<float*>(to), elements});
  // One copy: it travels as it is.
  std::vector<float> sum(elements);
  sum_into(sum);
  backend_->CastFromFloat(sum, ToKernel(piece.dtype), to);
}

// What was not summed ahead. `bucketwise`: each as soon as it has come.
void Reduction::SumRest(size_t slot, bool bucketwise, SlotWork& work) {
  StageTimer timer(work.seconds);
  for (uint32_t b = 0; b < buckets_.size(); ++b) {
    for (const Incoming& incoming : buckets_[b].in) {
      if (incoming.slot != slot || (buckets_[b].done && incoming.local)) continue;
      const uint32_t tensor = states_[slot]->unit(incoming.unit).tensor;
      if (skipped(tensor)) continue;
      // An error is found again when the mail is closed.
      if (bucketwise && mail() != nullptr && !mail()->Receive(b).ok()) return;
      timer.Charge(Stage::kReduce);
      states_[slot]->Collect(incoming.unit, *workers_, missing_[tensor]);
      timer.Charge(Stage::kCollect);
    }
  }
}

void Reduction::FindMissing(uint64_t step) {
  for (size_t tensor = 0; tensor < missing_.size(); ++tensor) {
    missing_[tensor] = workers_->MissingIn(tensor, step);
  }
}

void Reduction::AddMissing(const v1::MissingGradients& missing) {
  if (missing.tensor() >= missing_.size()) return;
  MissingRanks& ranks = missing_[missing.tensor()];
  ranks.insert(ranks.end(), missing.ranks().begin(), missing.ranks().end());
}

}  // namespace dmuon::node
