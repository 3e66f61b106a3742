// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/local_link.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/base/join_requests.h"
#include "daemon/base/log.h"
#include "wire/error.h"
#include "wire/mutex.h"

namespace dmuon::coordinator {
namespace {

// A wake-up that is remembered until somebody waits for it.
class Bell {
 public:
  void Ring() {
    wire::MutexLock lock(mu_);
    rung_ = true;
    cv_.NotifyAll();
  }
  void WaitUntil(std::chrono::steady_clock::time_point deadline) {
    wire::MutexLock lock(mu_);
    while (!rung_ && cv_.WaitUntil(mu_, deadline)) {
    }
    rung_ = false;
  }

 private:
  wire::Mutex mu_;
  wire::CondVar cv_;
  bool rung_ ABSL_GUARDED_BY(mu_) = false;
};

class LocalLink final : public CoordinatorLink {
 public:
  explicit LocalLink(Host* host) : host_(host) {}
  ~LocalLink() override { Stop(); }

  void Start(PlanSink sink, std::function<v1::JoinRequest()> join) override {
    sink_ = std::move(sink);
    join_ = std::move(join);
    thread_ = std::thread([this] { Serve(); });
  }

  void Stop() override {
    {
      wire::MutexLock lock(mu_);
      stopping_ = true;
    }
    bell_->Ring();
    if (thread_.joinable()) thread_.join();
  }

  void Rejoin() override {
    joins_.Ask();
    bell_->Ring();
  }
  bool AwaitRejoin(absl::Duration patience) override { return joins_.Await(patience); }

  absl::Status RegisterWorker(v1::RegisterWorkerRequest request) override {
    DMUON_RETURN_IF_ERROR(Identify(*request.mutable_node()));
    return host_->RegisterWorker(request);
  }

  absl::Status ReleaseJob(v1::ReleaseJobRequest request) override {
    DMUON_RETURN_IF_ERROR(Identify(*request.mutable_node()));
    return host_->ReleaseJob(request);
  }

  absl::StatusOr<uint64_t> NextAttempt(v1::Meeting meeting) override {
    DMUON_RETURN_IF_ERROR(Identify(*meeting.mutable_node()));
    return host_->NextAttempt(meeting);
  }

  absl::Status SetKey(v1::Meeting meeting, const std::string& key,
                      const std::string& value) override {
    DMUON_RETURN_IF_ERROR(Identify(*meeting.mutable_node()));
    v1::SetKeyRequest request;
    *request.mutable_meeting() = std::move(meeting);
    request.set_key(key);
    request.set_value(value);
    return host_->SetKey(request);
  }

  absl::StatusOr<std::optional<std::string>> GetKey(v1::Meeting meeting,
                                                    const std::string& key) override {
    DMUON_RETURN_IF_ERROR(Identify(*meeting.mutable_node()));
    v1::GetKeyRequest request;
    *request.mutable_meeting() = std::move(meeting);
    request.set_key(key);
    return host_->GetKey(request);
  }

  absl::StatusOr<v1::ReportPartResponse> ReportPart(v1::ReportPartRequest request) override {
    DMUON_RETURN_IF_ERROR(Identify(*request.mutable_node()));
    return host_->ReportPart(request);
  }

  [[nodiscard]] std::string address() const override { return "standalone"; }

 private:
  // The thread: one membership after the other, until Stop.
  void Serve() {
    while (!Stopping()) {
      const uint64_t number = joins_.Begin();
      const v1::JoinRequest request = join_();
      const auto joined = host_->Join(request);
      if (joined.ok()) joins_.Heard(number);
      const auto queue = std::make_shared<PlanQueue>([bell = bell_] { bell->Ring(); });
      absl::Status status = joined.ok() ? host_->Watch(request.node(), queue) : joined.status();
      if (status.ok()) status = Follow(request.node(), *queue);
      SetMember(nullptr);
      if (Stopping()) {
        v1::LeaveRequest leave;
        *leave.mutable_node() = request.node();
        // Not a member any more is as good as having left.
        host_->Leave(leave).IgnoreError();
        return;
      }
      LogWarning("coordinator link: ", absl::string_view(status.message()), "; joining again");
      bell_->WaitUntil(std::chrono::steady_clock::now() + std::chrono::seconds(1));
    }
  }

  // Delivers events and beats until the membership or the link ends.
  absl::Status Follow(const v1::NodeIdentity& node, PlanQueue& queue) {
    SetMember(&node);
    v1::BeatRequest beat;
    *beat.mutable_node() = node;
    const auto interval = absl::ToChronoNanoseconds(host_->lease() / 3);
    auto next_beat = std::chrono::steady_clock::now() + interval;
    while (!Stopping()) {
      PlanQueue::Next next = queue.Pop();
      if (next.event.has_value()) {
        sink_(*next.event);
        continue;
      }
      if (next.end.has_value()) return *next.end;
      bell_->WaitUntil(next_beat);
      if (joins_.due()) {
        const uint64_t number = joins_.Begin();
        DMUON_RETURN_IF_ERROR(host_->Join(join_()).status());
        joins_.Heard(number);
      }
      if (std::chrono::steady_clock::now() < next_beat) continue;
      DMUON_RETURN_IF_ERROR(host_->Beat(beat));
      next_beat = std::chrono::steady_clock::now() + interval;
    }
    return absl::OkStatus();
  }

  absl::Status Identify(v1::NodeIdentity& node) {
    wire::MutexLock lock(mu_);
    if (!member_) return absl::UnavailableError("the node has not joined its coordinator yet");
    node = node_;
    return absl::OkStatus();
  }

  void SetMember(const v1::NodeIdentity* node) {
    wire::MutexLock lock(mu_);
    member_ = node != nullptr;
    if (node != nullptr) node_ = *node;
  }

  bool Stopping() {
    wire::MutexLock lock(mu_);
    return stopping_;
  }

  Host* const host_;
  // Shared with the queues that the host may still hold when the link is gone.
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  PlanSink sink_;                          // set before the thread starts
  std::function<v1::JoinRequest()> join_;  // likewise
  wire::Mutex mu_;                         // leaf lock
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool member_ ABSL_GUARDED_BY(mu_) = false;
  v1::NodeIdentity node_ ABSL_GUARDED_BY(mu_);
  JoinRequests joins_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<CoordinatorLink> MakeLocalLink(Host* host) {
  return std::make_unique<LocalLink>(host);
}

}  // namespace dmuon::coordinator
