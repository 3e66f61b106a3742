// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Seconds by stage.
#pragma once

#include <chrono>

#include "daemon/node/step_report.h"

namespace dmuon::node {

// Adds the time since the last reading to a stage.
class StageTimer {
 public:
  explicit StageTimer(StageSeconds& seconds) : seconds_(seconds) {}
  void Charge(Stage stage) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<size_t>(stage)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  StageSeconds& seconds_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace dmuon::node
