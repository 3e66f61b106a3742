// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/autotuner.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/version.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/methods.h"
#include "daemon/plan/optimizers.h"
#include "daemon/plan/timings.h"

namespace dmuon::node {
namespace {

v1::UnitTimes OwnerOf(const AutotunerOptions& options, const kernels::Backend& backend) {
  v1::UnitTimes owner;
  owner.set_version(VersionText());
  owner.set_backend(std::string(backend.name()));
  owner.set_device(backend.device());
  owner.set_slots(options.slots);
  owner.set_threads_per_slot(static_cast<uint32_t>(options.threads_per_slot));
  return owner;
}

std::string ShapeText(const kernels::MatrixShape& shape) { return absl::StrCat(shape.rows, " x ", shape.cols); }

}  // namespace

Autotuner::Autotuner(AutotunerOptions options, kernels::Backend* backend, MemoryBudget* memory)
    : options_(std::move(options)),
      backend_(backend),
      memory_(memory),
      store_(options_.cache_directory, OwnerOf(options_, *backend)) {}

// Small shapes first: they are quick, and what they teach bounds the time of the larger ones.
class Autotuner::Session {
 public:
  Session(Autotuner* tuner, const v1::JobSpec& job)
      : tuner_(tuner),
        job_(job),
        classes_(plan::ShapeClasses(job)),
        timer_(tuner->options_.slots, tuner->options_.threads_per_slot, tuner->backend_),
        until_(MonotonicNow() + tuner->options_.budget) {
    tuner->backend_->BindThread(tuner->options_.threads_per_slot);  // what BatchSize asks for
    std::stable_sort(classes_.begin(), classes_.end(), [](const plan::ShapeClass& a, const plan::ShapeClass& b) {
      return Work(a, {}) < Work(b, {});
    });
  }

  std::vector<v1::UnitTime> Run(const std::function<bool()>& cancelled) {
    for (size_t i = 0; i < classes_.size(); ++i) {
      if (cancelled()) return {};
      if (Recall(classes_[i])) continue;
      SetProgress(absl::StrCat("job ", job_.job_id(), ": ", i + 1, " of ", classes_.size(), ", ",
                               ShapeText(classes_[i].shape)));
      const UnitTimer::Class timed = ForTimer(classes_[i]);
      if (const auto share = Room(classes_[i], timed); share.has_value()) {
        Measure(classes_[i], timed);
      } else if (!Extrapolate(classes_[i])) {
        LogWarning("job ", job_.job_id(), ": no unit was quick or small enough to be measured within ",
                   absl::FormatDuration(tuner_->options_.budget), "; prices go by operation counts");
        return {};
      }
    }
    LogInfo("job ", job_.job_id(), ": ", measured_, " units measured, ", recalled_, " known, ", extrapolated_,
            " estimated");
    return std::move(times_);
  }

  [[nodiscard]] bool measured() const { return measured_ > 0; }

 private:
  // What the time of a class grows with.
  static double Work(const plan::ShapeClass& units, const kernels::Method& method) {
    const kernels::Optimizer optimizer = plan::ToOptimizer(units.optimizer);
    double work = static_cast<double>(units.shape.rows * units.shape.cols);
    if (optimizer.orthogonalizer == kernels::Orthogonalizer::kTopK) {
      const auto [rows, cols] = units.shape;
      const auto [products, small] = kernels::TopKFlops(rows, cols, plan::LargestRank(optimizer, units.shape));
      work += products + small;
    } else if (optimizer.needs_whole_matrix()) {
      const kernels::MatrixShape of = plan::OrthogonalizedShape(optimizer, units.shape);
      work += kernels::NewtonSchulzWork(method, of.rows, of.cols, optimizer.newton_schulz.iterations);
    }
    return work;
  }

  void SetProgress(std::string text) {
    if (!text.empty()) LogInfo("measuring ", text);
    wire::MutexLock lock(tuner_->mu_);
    tuner_->progress_ = std::move(text);
  }

  // Takes what is known of a class; false when something is missing.
  bool Recall(const plan::ShapeClass& units) {
    if (job_.autotune() == v1::AUTOTUNE_ON) return false;
    std::vector<v1::UnitTime> known;
    {
      wire::MutexLock lock(tuner_->mu_);
      for (const kernels::Method& method : units.methods) {
        const v1::UnitTime* time = tuner_->store_.Find(plan::KeyOf(plan::TimeOf(units, method)));
        if (time == nullptr) return false;
        known.push_back(*time);
      }
    }
    recalled_ += known.size();
    for (const v1::UnitTime& time : known) Learn(units, time);
    return true;
  }

  // The memory to measure the class in, if that and the time are left.
  std::optional<MemoryBudget::Share> Room(const plan::ShapeClass& units, const UnitTimer::Class& timed) {
    constexpr double kRuns = 3;  // of the standard form for comparison, to warm up, to measure
    double seconds = 0.0;
    for (const kernels::Method& method : units.methods) {
      const auto rate = rates_.find(kernels::IndexOf(method));
      const double per_second =
          rate == rates_.end() ? plan::SlotSpeed().flops_per_second : rate->second.work / rate->second.seconds;
      seconds += kRuns * static_cast<double>(timed.batch) * Work(units, method) / per_second;
    }
    if (MonotonicNow() + absl::Seconds(seconds) > until_) return std::nullopt;
    auto share = tuner_->memory_->Take(timer_.BytesFor(timed), "measuring");
    if (!share.ok()) return std::nullopt;
    return *std::move(share);
  }

  UnitTimer::Class ForTimer(const plan::ShapeClass& units) const {
    UnitTimer::Class timed{plan::ToOptimizer(units.optimizer), units.shape, units.methods};
    if (timed.optimizer.orthogonalizer == kernels::Orthogonalizer::kNewtonSchulz) {
      timed.batch = tuner_->backend_->BatchSize(units.shape);
    }
    return timed;
  }

  void Measure(const plan::ShapeClass& units, const UnitTimer::Class& timed) {
    const std::vector<UnitTimer::Result> results = timer_.Measure(timed);
    for (size_t i = 0; i < results.size(); ++i) {
      v1::UnitTime time = plan::TimeOf(units, units.methods[i]);
      time.set_seconds(results[i].seconds);
      time.set_error(results[i].error);
      time.set_batch(static_cast<uint32_t>(timed.batch));
      if (!plan::IsAccurate(time)) {
        LogWarning("job ", job_.job_id(), ": ", std::string(kernels::Name(units.methods[i].form)), " ",
                   std::string(kernels::Name(units.methods[i].precision)), " of ", ShapeText(units.shape), " errs by ",
                   time.error(), " and will not be used");
      }
      ++measured_;
      Learn(units, time);
      wire::MutexLock lock(tuner_->mu_);
      tuner_->store_.Put(std::move(time));
    }
  }

  // In proportion to the work of the largest class of the same method so far.
  bool Extrapolate(const plan::ShapeClass& units) {
    for (const kernels::Method& method : units.methods) {
      const auto rate = rates_.find(kernels::IndexOf(method));
      if (rate == rates_.end() || units.optimizer.has_muon() != rate->second.time.optimizer().has_muon()) return false;
      v1::UnitTime time = plan::TimeOf(units, method);
      time.set_seconds(rate->second.seconds * Work(units, method) / rate->second.work);
      time.set_error(rate->second.time.error());
      time.set_extrapolated(true);
      ++extrapolated_;
      times_.push_back(std::move(time));
    }
    return true;
  }

  void Learn(const plan::ShapeClass& units, const v1::UnitTime& time) {
    if (units.optimizer.has_muon()) {
      const kernels::Method method = plan::FromProto(time.method());
      rates_[kernels::IndexOf(method)] = {Work(units, method), time.seconds(), time};
    }
    times_.push_back(time);
  }

  struct Rate {
    double work = 0.0;
    double seconds = 0.0;
    v1::UnitTime time;
  };

  Autotuner* const tuner_;
  const v1::JobSpec& job_;
  std::vector<plan::ShapeClass> classes_;
  UnitTimer timer_;
  const absl::Time until_;
  std::map<int, Rate> rates_;  // by kernels::IndexOf
  std::vector<v1::UnitTime> times_;
  size_t measured_ = 0, recalled_ = 0, extrapolated_ = 0;
};

std::vector<v1::UnitTime> Autotuner::TimesFor(const v1::JobSpec& job, const std::function<bool()>& cancelled) {
  if (job.autotune() != v1::AUTOTUNE_CACHED && job.autotune() != v1::AUTOTUNE_ON) return {};
  wire::MutexLock measuring(measuring_);
  Session session(this, job);
  std::vector<v1::UnitTime> times = session.Run(cancelled);
  wire::MutexLock lock(mu_);
  progress_.clear();
  if (session.measured()) {
    if (const absl::Status saved = store_.Save(); !saved.ok()) {
      LogWarning("measured times are kept in memory only: ", saved.message());
    }
  }
  return times;
}

v1::GetKernelsResponse Autotuner::Describe() const {
  wire::MutexLock lock(mu_);
  v1::UnitTimes all = store_.All();
  v1::GetKernelsResponse response;
  response.set_backend(all.backend());
  response.set_device(all.device());
  response.set_slots(all.slots());
  response.set_threads_per_slot(all.threads_per_slot());
  response.set_cache(store_.path());
  response.set_progress(progress_);
  response.mutable_times()->Swap(all.mutable_times());
  return response;
}

}  // namespace dmuon::node
