// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/daemon/base/temp_dir.h"

namespace dmuon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Touches every row once, with one value a label.
void FillEveryRow(Metrics& metrics) {
  for (const MetricInfo& row : kMetricTable) {
    const auto touch = [&](Metrics::Labels labels) {
      switch (row.type) {
        case MetricType::kCounter: metrics.Increment(row.id, labels); break;
        case MetricType::kGauge: metrics.Set(row.id, labels, 1); break;
        case MetricType::kHistogram: metrics.Observe(row.id, labels, 0.01); break;
      }
    };
    switch (LabelCount(row)) {
      case 0: touch({}); break;
      case 1: touch({"a"}); break;
      case 2: touch({"a", "b"}); break;
      case 3: touch({"a", "b", "c"}); break;
      case 4: touch({"a", "b", "c", "d"}); break;
      default: FAIL() << row.name << " has more labels than this test knows";
    }
  }
}

int CountLines(const std::string& text, const std::string& start) {
  int count = 0;
  for (const auto& line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, start.size()) == start) ++count;
  }
  return count;
}

TEST(MetricsTest, EveryRowOfTheTableIsExported) {
  Metrics metrics;
  FillEveryRow(metrics);
  const std::string text = metrics.Text();
  for (const MetricInfo& row : kMetricTable) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("# HELP ", std::string(row.name), " ")));
  }
}

TEST(MetricsTest, PrometheusFindsNothingToComplainAbout) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no promtool";
  const TempDir dir;
  Metrics metrics;
  FillEveryRow(metrics);
  const std::string path = dir.File("metrics.txt");
  std::FILE* const file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  const std::string text = metrics.Text();
  ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
  ASSERT_EQ(std::fclose(file), 0);
  EXPECT_EQ(std::system(absl::StrCat("promtool check metrics < ", path, " >&2").c_str()), 0);
}

TEST(MetricsTest, CountersAddAndGaugesFollow) {
  Metrics metrics;
  metrics.Increment(MetricId::kSteps, {"demo", "committed"});
  metrics.Increment(MetricId::kSteps, {"demo", "committed"}, 2);
  metrics.Set(MetricId::kCurrentStep, {"demo"}, 9);
  metrics.Add(MetricId::kRpcInflight, {"x"}, 2);
  metrics.Add(MetricId::kRpcInflight, {"x"}, -1);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("dmuon_steps_total{job_id=\"demo\",result=\"committed\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("dmuon_current_step{job_id=\"demo\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("dmuon_rpc_inflight{method=\"x\"} 1\n"));
}

TEST(MetricsTest, HistogramsUseTheirOwnBuckets) {
  Metrics metrics;
  metrics.Observe(MetricId::kStepDuration, {"demo"}, 0.002);
  metrics.Observe(MetricId::kRpcServerDuration, {"m", "OK"}, 0.00015);
  const std::string text = metrics.Text();
  EXPECT_THAT(text,
              HasSubstr("dmuon_step_duration_seconds_bucket{job_id=\"demo\",le=\"0.0025\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("dmuon_rpc_server_duration_seconds_bucket{code=\"OK\",method=\"m\","
                              "le=\"0.0001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("dmuon_rpc_server_duration_seconds_bucket{code=\"OK\",method=\"m\","
                              "le=\"0.0002\"} 1\n"));
}

TEST(MetricsTest, ARemovedJobLeavesNoSeriesAndOthersStay) {
  Metrics metrics;
  for (const char* job : {"gone", "stays"}) {
    metrics.Increment(MetricId::kStageSeconds, {job, "reduce"}, 0.5);
    metrics.Set(MetricId::kGeneration, {job}, 3);
    metrics.Observe(MetricId::kStepDuration, {job}, 0.5);
  }
  metrics.RemoveJob("gone");
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("\"gone\"")));
  EXPECT_THAT(metrics.Text(), HasSubstr("dmuon_generation{job_id=\"stays\"} 3\n"));
  metrics.RemoveJob("never existed");
}

TEST(MetricsTest, AReturningJobCountsFromZero) {
  Metrics metrics;
  metrics.Increment(MetricId::kNewtonSchulzCalls, {"demo"}, 40);
  metrics.RemoveJob("demo");
  metrics.Increment(MetricId::kNewtonSchulzCalls, {"demo"}, 2);
  EXPECT_THAT(metrics.Text(),
              HasSubstr("dmuon_newton_schulz_calls_total{job_id=\"demo\"} 2\n"));
}

TEST(MetricsTest, JobsAboveTheCapShareOneSeries) {
  Metrics metrics;
  for (size_t i = 0; i < Metrics::kMaxJobs + 5; ++i) {
    metrics.Increment(MetricId::kNewtonSchulzCalls, {absl::StrCat("job-", i)});
  }
  const std::string text = metrics.Text();
  EXPECT_EQ(CountLines(text, "dmuon_newton_schulz_calls_total{job_id=\"job-"),
            static_cast<int>(Metrics::kMaxJobs));
  EXPECT_THAT(text, HasSubstr("dmuon_newton_schulz_calls_total{job_id=\"other\"} 5\n"));
}

TEST(MetricsTest, ARemovedJobFreesItsPlace) {
  Metrics metrics;
  for (size_t i = 0; i < Metrics::kMaxJobs; ++i) {
    metrics.Increment(MetricId::kNewtonSchulzCalls, {absl::StrCat("job-", i)});
  }
  metrics.RemoveJob("job-0");
  metrics.Increment(MetricId::kNewtonSchulzCalls, {"late"});
  EXPECT_THAT(metrics.Text(),
              HasSubstr("dmuon_newton_schulz_calls_total{job_id=\"late\"} 1\n"));
}

TEST(MetricsTest, RemovingWhileOthersCountIsSafe) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 2000; ++i) metrics.Increment(MetricId::kNewtonSchulzCalls, {"demo"});
    });
  }
  for (int i = 0; i < 200; ++i) {
    metrics.RemoveJob("demo");
    (void)metrics.Text();
  }
  for (std::thread& thread : threads) thread.join();
  metrics.RemoveJob("demo");
  metrics.Increment(MetricId::kNewtonSchulzCalls, {"demo"});
  EXPECT_THAT(metrics.Text(), HasSubstr("{job_id=\"demo\"} 1\n"));
}

TEST(MetricsDeathTest, AWrongNumberOfLabelsIsABug) {
  Metrics metrics;
  EXPECT_DEATH(metrics.Increment(MetricId::kSteps, {"demo"}),
               "dmuon_steps_total: wrong number of label values");
}

TEST(MetricsDeathTest, AWrongTypeIsABug) {
  Metrics metrics;
  EXPECT_DEATH(metrics.Set(MetricId::kSteps, {"demo", "committed"}, 1),
               "dmuon_steps_total: is of another type");
}

TEST(MetricsServeTest, TheEndpointAnswersWithTheText) {
  Metrics metrics;
  metrics.Set(MetricId::kBuildInfo, {"1", "2", "3"}, 1);
  const auto address = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_THAT(*address, Not(HasSubstr(":0")));
  const TempDir dir;
  const std::string out = dir.File("scrape");
  ASSERT_EQ(std::system(absl::StrCat("curl --noproxy '*' -sf http://", *address, "/metrics > ", out,
                                     " && grep -q '^dmuon_build_info' ", out)
                            .c_str()),
            0);
}

TEST(MetricsServeTest, ATakenPortIsAnErrorThatNamesIt) {
  Metrics first;
  Metrics second;
  const auto address = first.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  const auto again = second.Serve(*address);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr(*address));
}

TEST(MetricsServeTest, AnAddressWithoutAPortIsRefused) {
  Metrics metrics;
  EXPECT_EQ(metrics.Serve("localhost").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dmuon
