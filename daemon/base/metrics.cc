// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/metrics.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "wire/mutex.h"

namespace dmuon {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// Steps and waits: a millisecond to half a minute.
const Buckets& StepBuckets() {
  static const Buckets buckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                  0.25,  0.5,    1,     2.5,  5,     10,   30};
  return buckets;
}

// RPCs: a unix-socket call takes about 0.15 ms, a step's call as long as the step.
const Buckets& RpcBuckets() {
  static const Buckets buckets = {0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.0025, 0.005,
                                  0.01,    0.05,   0.1,    0.5,    1,     5};
  return buckets;
}

// Checkpoints: what a disk takes for megabytes to hundreds of gigabytes.
const Buckets& CheckpointBuckets() {
  static const Buckets buckets = {0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600};
  return buckets;
}

const Buckets& BucketsOf(MetricId id) {
  if (id == MetricId::kCheckpointDuration) return CheckpointBuckets();
  return id == MetricId::kRpcServerDuration ? RpcBuckets() : StepBuckets();
}

[[noreturn]] void Bug(const MetricInfo& info, const char* what) {
  std::fprintf(stderr, "metric %.*s: %s\n", static_cast<int>(info.name.size()), info.name.data(),
               what);
  std::abort();
}

std::vector<std::string> SplitLabels(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty()) {
    const size_t comma = names.find(',');
    out.emplace_back(names.substr(0, comma));
    names.remove_prefix(comma == std::string_view::npos ? names.size() : comma + 1);
  }
  return out;
}

// One family of the registry and its series, found by their label values. `family` is null in the
// two of three that are not of the row's type.
template <typename T>
struct SeriesOf {
  struct Entry {
    std::string job;  // its job_id; empty without that label
    T* metric;
  };
  prometheus::Family<T>* family = nullptr;
  std::map<std::string, Entry> entries;

  void RemoveJob(const std::string& job) {
    std::erase_if(entries, [&](const auto& entry) {
      if (entry.second.job != job) return false;
      family->Remove(entry.second.metric);
      return true;
    });
  }
};

struct Row {
  std::vector<std::string> label_names;
  SeriesOf<prometheus::Counter> counters;
  SeriesOf<prometheus::Gauge> gauges;
  SeriesOf<prometheus::Histogram> histograms;
};

Row MakeRow(const MetricInfo& info, prometheus::Registry& registry) {
  const std::string name(info.name);
  const std::string help(info.help);
  Row out;
  out.label_names = SplitLabels(info.labels);
  switch (info.type) {
    case MetricType::kCounter:
      out.counters.family = &prometheus::BuildCounter().Name(name).Help(help).Register(registry);
      break;
    case MetricType::kGauge:
      out.gauges.family = &prometheus::BuildGauge().Name(name).Help(help).Register(registry);
      break;
    case MetricType::kHistogram:
      out.histograms.family =
          &prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
      break;
  }
  return out;
}

// Connects and hangs up. `address` is host:port, the host a number.
void Knock(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    (void)connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

// The HTTP server looks at its flag to stop when somebody connects, else every two seconds; nobody should wait for that.
void Stop(std::unique_ptr<prometheus::Exposer> exposer, const std::string& address) {
  std::promise<void> stopped;
  std::thread knocking([&address, done = stopped.get_future()] {
    while (done.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout) Knock(address);
  });
  exposer.reset();
  stopped.set_value();
  knocking.join();
}

}  // namespace

struct Metrics::Impl {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::unique_ptr<prometheus::Exposer> exposer;  // set once, by Serve
  std::string address;                           // that it is bound to

  // Leaf lock, held while a series is touched, so that RemoveJob cannot free it meanwhile. A scrape
  // does not take it.
  wire::Mutex mu;
  std::set<std::string> jobs ABSL_GUARDED_BY(mu);
  std::array<Row, kMetricTable.size()> rows ABSL_GUARDED_BY(mu);

  // The value under which a job's series are kept.
  std::string JobLabel(std::string_view job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::string job(job_id);
    if (jobs.contains(job)) return job;
    if (jobs.size() >= kMaxJobs) return "other";
    jobs.insert(job);
    return job;
  }

  // The series with these label values, made when it is new; `buckets` are a new histogram's.
  template <typename T, typename... Buckets>
  T& Find(MetricId id, SeriesOf<T> Row::*series_of, Labels values, const Buckets&... buckets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const MetricInfo& info = kMetricTable[static_cast<size_t>(id)];
    Row& row = rows[static_cast<size_t>(id)];
    SeriesOf<T>& series = row.*series_of;
    if (series.family == nullptr) Bug(info, "is of another type");
    if (values.size() != row.label_names.size()) Bug(info, "wrong number of label values");
    std::string key;
    std::string job;
    prometheus::Labels labels;
    size_t i = 0;
    for (const std::string_view value : values) {
      const std::string& name = row.label_names[i++];
      std::string label(value);
      if (name == "job_id") label = job = JobLabel(value);
      key.append(label).push_back('\0');
      labels.emplace(name, std::move(label));
    }
    auto found = series.entries.find(key);
    if (found == series.entries.end()) {
      T* const metric = &series.family->Add(labels, buckets...);
      found = series.entries.try_emplace(key, typename SeriesOf<T>::Entry{job, metric}).first;
    }
    return *found->second.metric;
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  const wire::MutexLock lock(impl_->mu);
  for (const MetricInfo& info : kMetricTable) {
    impl_->rows[static_cast<size_t>(info.id)] = MakeRow(info, *impl_->registry);
  }
}

Metrics::~Metrics() {
  if (impl_->exposer != nullptr) Stop(std::move(impl_->exposer), impl_->address);
}

void Metrics::Increment(MetricId id, Labels labels, double by) {
  const wire::MutexLock lock(impl_->mu);
  impl_->Find(id, &Row::counters, labels).Increment(by);
}

void Metrics::Set(MetricId id, Labels labels, double value) {
  const wire::MutexLock lock(impl_->mu);
  impl_->Find(id, &Row::gauges, labels).Set(value);
}

void Metrics::Add(MetricId id, Labels labels, double by) {
  const wire::MutexLock lock(impl_->mu);
  impl_->Find(id, &Row::gauges, labels).Increment(by);
}

void Metrics::Observe(MetricId id, Labels labels, double value) {
  const wire::MutexLock lock(impl_->mu);
  impl_->Find(id, &Row::histograms, labels, BucketsOf(id)).Observe(value);
}

void Metrics::RemoveJob(std::string_view job_id) {
  const std::string job(job_id);
  const wire::MutexLock lock(impl_->mu);
  if (impl_->jobs.erase(job) == 0) return;
  for (Row& row : impl_->rows) {
    row.counters.RemoveJob(job);
    row.gauges.RemoveJob(job);
    row.histograms.RemoveJob(job);
  }
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

absl::StatusOr<std::string> Metrics::Serve(const std::string& address) {
  if (impl_->exposer != nullptr) {
    return absl::FailedPreconditionError("metrics are already served");
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address \"", address, "\" is not host:port"));
  }
  try {  // the HTTP server reports by exception
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    exposer->RegisterCollectable(impl_->registry);
    const int port = exposer->GetListeningPorts().at(0);
    impl_->exposer = std::move(exposer);
    impl_->address = absl::StrCat(address.substr(0, colon), ":", port);
    return impl_->address;
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", address, ": ", e.what()));
  }
}

}  // namespace dmuon
