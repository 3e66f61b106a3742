// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Every metric that dmuon exports, and the only way to touch one. The table in metric_table.h is
// checked at compile time (prefix, unit, `_total`); this class owns the Prometheus registry.
//
// Thread-safe; a scrape copies atomics and never waits for a step.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/base/metric_table.h"

namespace dmuon {

class Metrics {
 public:
  // Label values in the order of the table's label names. A wrong number of them, or a call that
  // does not fit the metric's type, is a bug and aborts.
  using Labels = std::initializer_list<std::string_view>;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void Increment(MetricId id, Labels labels, double by = 1.0);  // counters
  void Set(MetricId id, Labels labels, double value);           // gauges
  void Add(MetricId id, Labels labels, double by);              // gauges, up and down
  void Observe(MetricId id, Labels labels, double value);       // histograms

  // At most 16 jobs have series of their own; further ones share job_id="other", which stays.
  static constexpr size_t kMaxJobs = 16;
  // Removes every series of the job and frees its place. Call it when nothing counts for the job any
  // more: a later call brings its series back.
  void RemoveJob(std::string_view job_id);

  // The text that a scrape gets.
  [[nodiscard]] std::string Text() const;

  // Starts the HTTP endpoint /metrics; at most once. `address` is host:port; port 0 takes a free one.
  // Returns the bound address. UNAVAILABLE when the port is taken.
  absl::StatusOr<std::string> Serve(const std::string& address);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmuon
