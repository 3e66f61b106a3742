// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/checkpoint/store.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/checkpoint/samples.h"

namespace dmuon::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A coordinator that always answers the same about parts.
class AnsweringLink final : public CoordinatorLink {
 public:
  explicit AnsweringLink(absl::StatusOr<v1::ReportPartResponse> answer) : answer_(std::move(answer)) {}
  void Start(PlanSink, std::function<v1::JoinRequest()>) override {}
  void Rejoin() override {}
  bool AwaitRejoin(absl::Duration) override { return true; }
  void Stop() override {}
  absl::Status RegisterWorker(v1::RegisterWorkerRequest) override { return {}; }
  absl::Status ReleaseJob(v1::ReleaseJobRequest) override { return {}; }
  absl::StatusOr<uint64_t> NextAttempt(v1::Meeting) override { return 1; }
  absl::Status SetKey(v1::Meeting, const std::string&, const std::string&) override { return {}; }
  absl::StatusOr<std::optional<std::string>> GetKey(v1::Meeting, const std::string&) override { return std::nullopt; }
  absl::StatusOr<v1::ReportPartResponse> ReportPart(v1::ReportPartRequest) override { return answer_; }
  [[nodiscard]] std::string address() const override { return "nowhere"; }

 private:
  const absl::StatusOr<v1::ReportPartResponse> answer_;
};

class SaverTest : public ::testing::Test {
 protected:
  // Of a checkpoint of several nodes.
  absl::Status SaveWith(absl::StatusOr<v1::ReportPartResponse> answer) {
    AnsweringLink link(std::move(answer));
    std::promise<absl::Status> done;
    Saver saver("node-0", store_.get(), &link, /*peer_timeout=*/absl::ZeroDuration());
    saver.Start({manifest_, checkpoint::SampleImage(checkpoint::SampleEntries(), 7), {}, /*alone=*/false, 0},
                [&](const absl::StatusOr<uint64_t>& bytes) { done.set_value(bytes.status()); });
    return done.get_future().get();
  }
  [[nodiscard]] bool HasPart() const {
    checkpoint::Part part;
    part.node = "node-0";
    part.file = "first.7.3.node-0.safetensors";
    checkpoint::Manifest manifest = manifest_;
    manifest.parts = {part};
    return store_->AbsentFiles(manifest).empty();
  }

  TempDir directory_;
  std::unique_ptr<checkpoint::Store> store_ = checkpoint::Store::Open(directory_.path()).value();
  const checkpoint::Manifest manifest_ = checkpoint::SampleManifest("first", 7);
};

TEST_F(SaverTest, APartWhoseCheckpointFailedGoes) {
  v1::ReportPartResponse failed;
  failed.set_failure("node 'node-1': its disk is full");
  const absl::Status status = SaveWith(failed);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("its disk is full"));
  EXPECT_FALSE(HasPart());
}

// The others may have heard that all parts are there, before the coordinator went away.
TEST_F(SaverTest, APartWhoseCheckpointOthersMayHaveStays) {
  const absl::Status status = SaveWith(absl::UnavailableError("gone"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(HasPart());
  EXPECT_THAT(store_->List(manifest_.job_id).value(), ElementsAre());
}

}  // namespace
}  // namespace dmuon::node
