// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A daemon that does what a test tells it: one job of one worker over a real gRPC socket and a real
// arena channel, with an optimizer that subtracts the gradient. It fails at named points.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dmuon/v1/node.pb.h"
#include "wire/arena.h"
#include "wire/mutex.h"
#include "wire/scoped_fd.h"

namespace dmuon::client {

class FakeNode {
 public:
  // What the next calls do, each entry once; then everything works again.
  struct Script {
    int opens_refused_as_taken = 0;
    int opens_unavailable = 0;
    absl::Status step_before = {};  // answered instead of applying the step
    absl::Status step_after = {};   // answered after applying it
    absl::Status begin = {};        // answered to Begin
    absl::Status save_before = {};     // answered instead of copying the state
    absl::Status save_after = {};      // answered after copying it
    absl::Status write = {};           // what becomes of every checkpoint that is asked for again
    absl::Status restore_before = {};  // answered instead of restoring
    absl::Status restore_after = {};   // answered after restoring
    absl::Status export_before = {};   // answered instead of giving the state
    absl::Status export_after = {};    // answered after giving it
    absl::Status import_before = {};   // answered instead of taking what was offered
    absl::Status import_after = {};    // answered after taking it
    bool unsealed_state = false;       // the next state is in a memfd that may still shrink
    bool forget_state = false;      // the next Register finds no state
    bool wrong_arena = false;       // the next arena has another generation than announced
    uint64_t raise_generation = 0;  // Register answers a generation higher by this
  };
  // What has happened.
  struct Log {
    std::vector<std::string> incarnations;
    std::vector<bool> must_resume;
    int steps_received = 0;
    int steps_applied = 0;
    std::vector<std::string> saves;  // "name of step 3", with ", wait" and ", again"
    int restores = 0;                // that were done
    int exports = 0;                 // states that were given
    int releases = 0;                // and are not needed any more
    int offers = 0;                  // states that were brought
    int closes = 0;
  };

  // Listens at `directory`/node.sock.
  explicit FakeNode(const std::string& directory);
  ~FakeNode();

  [[nodiscard]] std::string address() const { return "unix:" + path_; }
  void Play(Script script);
  [[nodiscard]] Log log();
  // While held, steps wait (until cancelled).
  void HoldSteps(bool hold) { hold_steps_ = hold; }
  // While held, no checkpoint exists, and who waits for one waits (until cancelled).
  void HoldWrites(bool hold) { hold_writes_ = hold; }
  // While held, restores wait (until cancelled).
  void HoldRestores(bool hold) { hold_restores_ = hold; }

 private:
  class Service;
  absl::Status Open(const v1::OpenRequest& request, v1::OpenResponse* response);
  absl::Status Register(const v1::RegisterRequest& request, v1::RegisterResponse* response);
  absl::Status Begin(const v1::BeginRequest& request, v1::BeginResponse* response);
  absl::Status Step(const v1::StepRequest& request, v1::StepResponse* response,
                    const std::function<bool()>& cancelled);
  // The RPC: answers for the step that rang, if there is something to say about it.
  absl::Status AskForStep(const v1::StepRequest& request, v1::StepResponse* response,
                          const std::function<bool()>& cancelled);
  absl::Status Save(const v1::SaveRequest& request, v1::SaveResponse* response,
                    const std::function<bool()>& cancelled);
  absl::Status Restore(const v1::RestoreRequest& request, v1::RestoreResponse* response,
                       const std::function<bool()>& cancelled);
  // The masters, one after the other.
  absl::Status Export(const v1::ExportRequest& request, v1::ExportResponse* response);
  // Of masters in that form; they are of step 7.
  absl::Status Import(const v1::ImportRequest& request, v1::ImportResponse* response);
  absl::Status Close();
  absl::Status CheckSession(uint64_t session_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Apply() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ServeChannels();
  void Accept();
  void Hear();
  void HearRing(const std::string& payload);

  const std::string path_;
  std::atomic<bool> hold_steps_ = false;
  std::atomic<bool> hold_writes_ = false;
  std::atomic<bool> hold_restores_ = false;
  std::atomic<bool> stopping_ = false;

  wire::Mutex mu_;
  Script script_ ABSL_GUARDED_BY(mu_);
  Log log_ ABSL_GUARDED_BY(mu_);
  uint64_t session_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 7;
  uint64_t last_step_ ABSL_GUARDED_BY(mu_) = 0;
  wire::ScopedFd channel_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::StatusOr<v1::StepResponse>> referral_ ABSL_GUARDED_BY(mu_);
  wire::ArenaLayout layout_ ABSL_GUARDED_BY(mu_);
  wire::Arena arena_ ABSL_GUARDED_BY(mu_);
  std::vector<std::vector<float>> masters_ ABSL_GUARDED_BY(mu_);  // empty: no state
  struct Checkpoint {
    uint64_t step = 0;
    std::vector<std::vector<float>> masters;
  };
  std::map<std::string, Checkpoint> checkpoints_ ABSL_GUARDED_BY(mu_);
  wire::ScopedFd offered_ ABSL_GUARDED_BY(mu_);

  wire::ScopedFd listener_;
  std::unique_ptr<Service> service_;
  std::thread channels_;
};

}  // namespace dmuon::client
