// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/checkpoint_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/checkpoint/manifest.h"
#include "daemon/node/checkpoint_calls.h"
#include "daemon/node/rpc_answer.h"
#include "daemon/node/work_lane.h"
#include "dmuon/v1/checkpoint.grpc.pb.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::node {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// At work and waiting for it.
constexpr size_t kMaxQuickCalls = 64;
constexpr size_t kMaxVerifications = 8;

absl::Status TooLate(absl::string_view what) {
  return wire::Error(absl::StatusCode::kDeadlineExceeded, v1::ERROR_REASON_CHECKPOINT, what);
}

class ServiceImpl final : public CheckpointService, public v1::CheckpointService::CallbackService {
 public:
  ServiceImpl(checkpoint::Store* store, std::string directory, SaveJobCallback save_job, Metrics* metrics)
      : store_(store), directory_(std::move(directory)), save_job_(std::move(save_job)), metrics_(metrics) {}

  ~ServiceImpl() override { Drain(); }

  grpc::Service* grpc_service() override { return this; }

  void Drain() override {
    draining_ = true;
    verifications_.Stop();
    quick_calls_.Stop();
  }

  ServerUnaryReactor* SaveJob(CallbackServerContext* context, const v1::SaveJobRequest* request,
                              v1::SaveJobResponse* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    const Reply<v1::SaveJobResponse> reply = ReplyBy(reactor, response, metrics_);
    if (absl::Status status = Check(*request); !status.ok()) {
      reply(std::move(status));
    } else {
      save_job_(request->job_id(), request->name(), AnswerBy(*context), reply);
    }
    return reactor;
  }

  ServerUnaryReactor* ListCheckpoints(CallbackServerContext* context, const v1::ListCheckpointsRequest* request,
                                      v1::ListCheckpointsResponse* response) override {
    return Run(quick_calls_, context, response, [this, request](absl::Time) {
      auto list = node::ListCheckpoints(*store_, *request);
      if (list.ok()) list->set_directory(directory_);
      return list;
    });
  }

  ServerUnaryReactor* GetCheckpoint(CallbackServerContext* context, const v1::GetCheckpointRequest* request,
                                    v1::GetCheckpointResponse* response) override {
    return Run(quick_calls_, context, response,
               [this, request](absl::Time) { return node::GetCheckpoint(*store_, *request); });
  }

  ServerUnaryReactor* VerifyCheckpoint(CallbackServerContext* context, const v1::VerifyCheckpointRequest* request,
                                       v1::VerifyCheckpointResponse* response) override {
    return Run(verifications_, context, response, [this, context, request](absl::Time by) {
      return Verify(*context, *request, by);
    });
  }

  ServerUnaryReactor* DeleteCheckpoint(CallbackServerContext* context, const v1::DeleteCheckpointRequest* request,
                                       v1::DeleteCheckpointResponse* response) override {
    return Run(quick_calls_, context, response,
               [this, request](absl::Time) { return node::DeleteCheckpoint(*store_, *request); });
  }

 private:
  absl::Status Check(const v1::SaveJobRequest& request) const {
    DMUON_RETURN_IF_ERROR(CheckStore());
    DMUON_RETURN_IF_ERROR(wire::ValidateId(request.job_id(), "job_id"));
    return checkpoint::ValidateName(request.name());
  }

  absl::Status CheckStore() const {
    if (store_ != nullptr) return absl::OkStatus();
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_CHECKPOINT,
                       "dmuond was started without --checkpoint-dir");
  }

  // Answers with `handler(when to answer at the latest)`, on the lane's thread. Nothing is done for a caller that has
  // waited too long to hear of it.
  template <typename Response, typename Handler>
  ServerUnaryReactor* Run(WorkLane& lane, CallbackServerContext* context, Response* response, Handler handler) {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (Refused(*context, reactor)) return reactor;
    const Reply<Response> reply = ReplyBy(reactor, response, metrics_);
    if (absl::Status status = CheckStore(); !status.ok()) {
      reply(std::move(status));
      return reactor;
    }
    const absl::Time by = AnswerBy(*context);
    const bool added = lane.Add([reply, by, handler = std::move(handler)] {
      if (MonotonicNow() < by) {
        reply(handler(by));
      } else {
        reply(TooLate("other calls kept the disk busy until the deadline; nothing was done"));
      }
    });
    if (!added) reply(draining_ ? wire::Draining("the daemon") : Busy(lane));
    return reactor;
  }

  static absl::Status Busy(const WorkLane& lane) {
    return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                       absl::StrCat(lane.most(), " calls of this kind wait for the disk, which is all that may; retry"));
  }

  absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const CallbackServerContext& context,
                                                      const v1::VerifyCheckpointRequest& request, absl::Time by) const {
    std::string so_far = "nothing";
    auto verified = node::VerifyCheckpoint(*store_, request, [&](uint64_t done, uint64_t total) {
      so_far = absl::StrCat(done, " of ", total, " bytes");
      return !draining_ && !context.IsCancelled() && MonotonicNow() < by;
    });
    if (!absl::IsCancelled(verified.status())) return verified;
    if (draining_) return wire::Draining("the daemon");
    return TooLate(absl::StrCat("the deadline came when ", so_far, " of checkpoint ", request.name(), " of job ",
                                request.job_id(), " were read and found as they were saved"));
  }

  checkpoint::Store* const store_;
  const std::string directory_;
  const SaveJobCallback save_job_;
  Metrics* const metrics_;
  std::atomic<bool> draining_ = false;
  // Threads: last, so that they end first.
  WorkLane quick_calls_{kMaxQuickCalls};
  WorkLane verifications_{kMaxVerifications};
};

}  // namespace

std::unique_ptr<CheckpointService> CheckpointService::Create(checkpoint::Store* store, std::string directory,
                                                             SaveJobCallback save_job, Metrics* metrics) {
  return std::make_unique<ServiceImpl>(store, std::move(directory), std::move(save_job), metrics);
}

}  // namespace dmuon::node
