// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/plan_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::coordinator {

void PlanQueue::PushInitial(std::vector<v1::WatchPlansResponse> initial) {
  wire::MutexLock lock(mu_);
  if (end_.has_value()) return;
  for (v1::WatchPlansResponse& event : initial) {
    bytes_ += event.ByteSizeLong();
    events_.push_back(std::move(event));
  }
}

void PlanQueue::Push(v1::WatchPlansResponse event) {
  wire::MutexLock lock(mu_);
  if (end_.has_value()) return;
  const size_t bytes = event.ByteSizeLong();
  if (!events_.empty() && bytes_ + bytes > max_bytes_) {
    end_ = wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                       absl::StrCat(events_.size(), " events of ", bytes_,
                                    " bytes wait for this node, at most ", max_bytes_,
                                    " bytes may; watch again"));
    return;
  }
  bytes_ += bytes;
  events_.push_back(std::move(event));
}

void PlanQueue::End(absl::Status status) {
  wire::MutexLock lock(mu_);
  if (!end_.has_value()) end_ = std::move(status);
}

PlanQueue::Next PlanQueue::Pop() {
  wire::MutexLock lock(mu_);
  Next next;
  if (events_.empty()) {
    next.end = end_;
    return next;
  }
  next.event = std::move(events_.front());
  events_.pop_front();
  bytes_ -= next.event->ByteSizeLong();
  return next;
}

}  // namespace dmuon::coordinator
