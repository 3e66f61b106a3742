// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Operators' calls over a unix socket, of a store on a disk.
#include "daemon/node/checkpoint_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/rpc_server.h"
#include "dmuon/v1/checkpoint.grpc.pb.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/checkpoint/samples.h"
#include "tests/daemon/node/gated_files.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/mutex.h"

namespace dmuon::node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Stub = v1::CheckpointService::Stub;

class CheckpointServiceTest : public ::testing::Test {
 protected:
  CheckpointServiceTest() : store_(checkpoint::Store::Open(dir_.File("checkpoints"), std::make_shared<GatedFiles>(gate_)).value()) {}
  void TearDown() override {
    gate_->Open();
    if (service_ != nullptr) service_->Drain();
    if (server_ != nullptr) server_->Shutdown(absl::Seconds(5));
  }

  void Serve(checkpoint::Store* store) {
    service_ = CheckpointService::Create(
        store, "/checkpoints",
        [this](const std::string& job_id, const std::string& name, absl::Time deadline,
               Reply<v1::SaveJobResponse> reply) {
          wire::MutexLock lock(mu_);
          saved_ = absl::StrCat(job_id, "/", name);
          time_to_save_ = deadline - MonotonicNow();
          v1::SaveJobResponse response;
          response.set_step(8);
          if (job_id == "silent") return;
          reply(response);
        },
        &metrics_);
    RpcServerOptions options;
    options.address = "unix:" + dir_.File("d.sock");
    options.service_names = {std::string(kCheckpointServiceName)};
    auto server = RpcServer::Start(options, {service_->grpc_service()}, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::CheckpointService::NewStub(MakeChannel(server_->address()));
  }
  // What the job was asked for since this was asked last; how much time it had.
  std::string TakeSaved() {
    wire::MutexLock lock(mu_);
    return std::exchange(saved_, "");
  }
  absl::Duration time_to_save() {
    wire::MutexLock lock(mu_);
    return time_to_save_;
  }
  // A checkpoint of two nodes.
  checkpoint::Manifest Save(const std::string& name, uint64_t step, const std::string& job_id = checkpoint::kJob) {
    checkpoint::Manifest manifest = checkpoint::SampleManifest(name, step, job_id);
    const checkpoint::Image image = checkpoint::SampleImage(checkpoint::SampleEntries());
    for (const char* node : {"a", "b"}) {
      manifest.parts.push_back(store_->WritePart(manifest, node, image, nullptr).value());
    }
    EXPECT_TRUE(store_->Commit(manifest).ok());
    return manifest;
  }
  [[nodiscard]] std::string PathOf(const std::string& file) const {
    return dir_.File("checkpoints") + "/" + checkpoint::kJob + "/" + file;
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                               const Request& request, absl::Duration timeout = absl::Seconds(60)) {
    grpc::ClientContext context;
    if (timeout > absl::ZeroDuration()) {
      context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
    }
    Response response;
    const absl::Status status = wire::FromGrpc((stub_.get()->*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }
  template <typename Request>
  static Request Of(const std::string& job_id, const std::string& name) {
    Request request;
    request.set_job_id(job_id);
    request.set_name(name);
    return request;
  }
  absl::StatusOr<v1::ListCheckpointsResponse> List(const std::string& job_id = "") {
    v1::ListCheckpointsRequest request;
    request.set_job_id(job_id);
    return Ask(&Stub::ListCheckpoints, request);
  }
  auto Get(const std::string& name) {
    return Ask(&Stub::GetCheckpoint, Of<v1::GetCheckpointRequest>(checkpoint::kJob, name));
  }
  auto Verify(const std::string& name, absl::Duration timeout = absl::Seconds(60)) {
    return Ask(&Stub::VerifyCheckpoint, Of<v1::VerifyCheckpointRequest>(checkpoint::kJob, name), timeout);
  }
  auto Delete(const std::string& name, absl::Duration timeout = absl::Seconds(60)) {
    return Ask(&Stub::DeleteCheckpoint, Of<v1::DeleteCheckpointRequest>(checkpoint::kJob, name), timeout);
  }
  auto SaveJob(const std::string& job_id, const std::string& name) {
    return Ask(&Stub::SaveJob, Of<v1::SaveJobRequest>(job_id, name));
  }

  const TempDir dir_;
  Metrics metrics_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::unique_ptr<checkpoint::Store> store_;
  wire::Mutex mu_;  // of what gRPC's threads leave here
  std::string saved_ ABSL_GUARDED_BY(mu_);
  absl::Duration time_to_save_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CheckpointService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(CheckpointServiceTest, ListsByJobThenStepAndNamesWhatIsMissing) {
  Serve(store_.get());
  Save("late", 9);
  Save("early", 2);
  Save("x", 5, "another");
  std::filesystem::remove(PathOf("late.9.3.b.safetensors"));
  const auto all = List();
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->directory(), "/checkpoints");
  ASSERT_THAT(all->checkpoints(), SizeIs(3));
  EXPECT_EQ(all->checkpoints(0).checkpoint().job_id(), "another");
  EXPECT_EQ(all->checkpoints(1).checkpoint().name(), "early");
  EXPECT_THAT(all->checkpoints(1).absent_files(), IsEmpty());
  EXPECT_THAT(all->checkpoints(2).absent_files(), ElementsAre("late.9.3.b.safetensors"));
  EXPECT_THAT(List("another")->checkpoints(), SizeIs(1));
  EXPECT_THAT(List("nobody")->checkpoints(), IsEmpty());
  EXPECT_EQ(List("no!").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointServiceTest, ShowsManifestAndTheArraysThatAreHere) {
  Serve(store_.get());
  const checkpoint::Manifest saved = Save("x", 7);
  const auto whole = Get("x");
  ASSERT_TRUE(whole.ok()) << whole.status();
  const v1::Checkpoint& shown = whole->listed().checkpoint();
  EXPECT_EQ(shown.step(), 7U);
  EXPECT_EQ(shown.generation(), 3U);
  EXPECT_EQ(shown.version(), "0.1.0");
  EXPECT_EQ(shown.parts(1).node_id(), "b");
  EXPECT_EQ(shown.parts(1).header_sha256(), saved.parts[1].header_sha256);
  EXPECT_EQ(shown.parts(1).bytes(), std::filesystem::file_size(PathOf(saved.parts[1].file)));
  const size_t entries = checkpoint::SampleEntries().size();
  ASSERT_THAT(whole->entries(), SizeIs(2 * entries));
  const v1::CheckpointEntry& momentum = whole->entries(1);
  EXPECT_EQ(momentum.key(), checkpoint::SampleEntries()[1].Key());
  EXPECT_EQ(momentum.file(), saved.parts[0].file);
  EXPECT_EQ(momentum.tensor(), "layers.0.wq");
  EXPECT_EQ(momentum.quantity(), "momentum");
  EXPECT_THAT(momentum.shape(), ElementsAre(4, 3));
  EXPECT_EQ(momentum.updates(), 7U);
  std::filesystem::remove(PathOf(saved.parts[0].file));
  const auto half = Get("x");
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_THAT(half->listed().absent_files(), ElementsAre(saved.parts[0].file));
  EXPECT_THAT(half->entries(), SizeIs(entries));
  EXPECT_EQ(half->entries(0).file(), saved.parts[1].file);
}

TEST_F(CheckpointServiceTest, VerifiesEveryByteAndNamesTheFileThatIsWrong) {
  Serve(store_.get());
  const checkpoint::Manifest saved = Save("x", 7);
  const auto verified = Verify("x");
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->bytes(), saved.parts[0].bytes + saved.parts[1].bytes);
  {
    std::fstream file(PathOf(saved.parts[1].file), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  const absl::Status damaged = Verify("x").status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(wire::ReasonOf(damaged), v1::ERROR_REASON_CHECKPOINT);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(saved.parts[1].file));
  // Of a file that is damaged and one that is missing, the damaged one is told.
  const checkpoint::Manifest whole = Save("y", 7);
  std::filesystem::remove(PathOf(whole.parts[0].file));
  const absl::Status missing = Verify("y").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(whole.parts[0].file));
}

TEST_F(CheckpointServiceTest, DeletesOneAndLeavesTheOthers) {
  Serve(store_.get());
  Save("x", 7);
  Save("y", 8);
  EXPECT_TRUE(Delete("x").ok());
  EXPECT_FALSE(std::filesystem::exists(PathOf("x.7.3.a.safetensors")));
  EXPECT_TRUE(Verify("y").ok());
  for (const absl::Status& gone : {Delete("x").status(), Get("x").status(), Verify("x").status()}) {
    EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(wire::ReasonOf(gone), v1::ERROR_REASON_CHECKPOINT);
  }
}

TEST_F(CheckpointServiceTest, ASaveGoesToTheJobWithTheTimeThatItHas) {
  Serve(store_.get());
  const auto saved = SaveJob("demo", "now");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->step(), 8U);
  EXPECT_EQ(TakeSaved(), "demo/now");
  EXPECT_GT(time_to_save(), absl::Seconds(20));
  EXPECT_LT(time_to_save(), absl::Seconds(60));
  for (const auto& [job, name] : {std::pair("demo", "Now"), std::pair("de mo", "now")}) {
    EXPECT_EQ(SaveJob(job, name).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(TakeSaved(), "");
  }
  EXPECT_EQ(wire::ReasonOf(SaveJob("silent", "now").status()), v1::ERROR_REASON_DRAINING) << "a job that went away";
}

TEST_F(CheckpointServiceTest, WithoutADirectoryEveryCallSaysSo) {
  Serve(nullptr);
  for (const absl::Status& refused : {SaveJob("demo", "x").status(), List().status(), Get("x").status(),
                                      Verify("x").status(), Delete("x").status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(wire::ReasonOf(refused), v1::ERROR_REASON_CHECKPOINT);
    EXPECT_EQ(std::string(refused.message()), "dmuond was started without --checkpoint-dir");
  }
}

TEST_F(CheckpointServiceTest, ACallWithoutDeadlineIsRefusedAndChangesNothing) {
  Serve(store_.get());
  Save("x", 7);
  EXPECT_EQ(Delete("x", absl::ZeroDuration()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(&Stub::SaveJob, Of<v1::SaveJobRequest>("demo", "x"), absl::ZeroDuration()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TakeSaved(), "");
  EXPECT_TRUE(Get("x").ok());
}

TEST_F(CheckpointServiceTest, AnErrorIsCountedByItsReason) {
  Serve(store_.get());
  EXPECT_FALSE(Get("x").ok());
  EXPECT_THAT(metrics_.Text(), HasSubstr("reason=\"CHECKPOINT\"} 1"));
}

TEST_F(CheckpointServiceTest, AfterADrainCallsAreToldToRetry) {
  Serve(store_.get());
  Save("x", 7);
  service_->Drain();
  for (const absl::Status& refused : {List().status(), Verify("x").status(), Delete("x").status()}) {
    EXPECT_EQ(wire::ReasonOf(refused), v1::ERROR_REASON_DRAINING);
  }
  EXPECT_EQ(store_->List(checkpoint::kJob)->size(), 1U);
}

TEST_F(CheckpointServiceTest, WhileOneIsVerifiedOtherCallsAreAnsweredAndFurtherVerificationsWait) {
  Serve(store_.get());
  Save("x", 7);
  gate_->Close();
  std::vector<std::future<absl::Status>> verifications;
  for (int i = 0; i < 3; ++i) {
    verifications.push_back(std::async(std::launch::async, [this] { return Verify("x").status(); }));
  }
  gate_->AwaitReader();
  EXPECT_THAT(List()->checkpoints(), SizeIs(1));
  EXPECT_TRUE(SaveJob("demo", "y").ok());
  gate_->Open();
  for (auto& verification : verifications) EXPECT_TRUE(verification.get().ok());
}

TEST_F(CheckpointServiceTest, AVerificationEndsWithItsDeadlineAndMakesWayForTheNext) {
  Serve(store_.get());
  Save("x", 7);
  gate_->Close();
  EXPECT_EQ(Verify("x", absl::Milliseconds(300)).status().code(), absl::StatusCode::kDeadlineExceeded);
  gate_->Open();
  EXPECT_TRUE(Verify("x").ok());
}

TEST_F(CheckpointServiceTest, ADrainGivesUpWhatIsVerifiedAndWhatWaits) {
  Serve(store_.get());
  Save("x", 7);
  gate_->Close();
  std::vector<std::future<absl::Status>> verifications;
  for (int i = 0; i < 2; ++i) {
    verifications.push_back(std::async(std::launch::async, [this] { return Verify("x").status(); }));
  }
  gate_->AwaitReader();
  auto drained = std::async(std::launch::async, [this] { service_->Drain(); });
  while (wire::ReasonOf(Verify("nothing").status()) != v1::ERROR_REASON_DRAINING) {
    std::this_thread::yield();  // drains when the first call is refused
  }
  gate_->Open();
  drained.get();
  for (auto& verification : verifications) {
    EXPECT_EQ(wire::ReasonOf(verification.get()), v1::ERROR_REASON_DRAINING);
  }
}

TEST_F(CheckpointServiceTest, ManyCallersAtOnceAllGetTheirAnswer) {
  Serve(store_.get());
  Save("x", 7);
  std::atomic<int> verified = 0;
  std::atomic<int> listed = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        if (Verify("x").ok()) ++verified;
        if (List().ok()) ++listed;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(verified, 30);
  EXPECT_EQ(listed, 30);
}

}  // namespace
}  // namespace dmuon::node
