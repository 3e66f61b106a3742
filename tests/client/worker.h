// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// One rank of a small job, for tests: a 4 x 6 matrix for Muon and a vector of 4 for AdamW, in
// floats.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <dmuon/dmuon.hpp>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace dmuon::client {

inline constexpr int32_t kPatienceMs = 60'000;  // a sanitizer build on a busy machine
inline constexpr double kRate = 0.125;          // exact in binary

// Status of a call that should fail; DMUON_OK and an empty message when it does not.
struct Failure {
  dmuon_status_t status = DMUON_OK;
  std::string message;
};
inline Failure FailureOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.status(), e.what()};
  }
  return {};
}

class Worker {
 public:
  Worker(const std::string& address, const std::string& job, uint32_t rank, uint32_t world_size,
         dmuon_missing_t missing = DMUON_MISSING_ERROR)
      : client_(MakeConfig(address, job, rank, world_size, missing)) {
    muon_ = client_.add_group(Group("matrices", DMUON_MUON));
    adamw_ = client_.add_group(Group("vectors", DMUON_ADAMW));
  }

  Client& client() { return client_; }
  [[nodiscard]] uint32_t muon() const { return muon_; }
  [[nodiscard]] uint32_t adamw() const { return adamw_; }

  // Whole tensors, not reduced: each rank has gradients of its own.
  void AddTensors() {
    for (WholeTensor tensor :
         {WholeTensor("matrix", {4, 6}, muon_), WholeTensor("vector", {4}, adamw_)}) {
      tensor.reduced = 0;
      Add(tensor);
    }
  }
  void Add(const dmuon_tensor& tensor) {
    client_.add_tensor(tensor);
    ++tensors_;
  }
  // Registers, sets every parameter to `initial`, begins.
  Position Join(float initial) {
    client_.register_tensors(kPatienceMs);
    for (uint32_t t = 0; t < tensors_; ++t) std::ranges::fill(params(t), initial);
    return client_.begin(kPatienceMs);
  }
  // Every gradient is `gradient`.
  void Submit(uint64_t step, float gradient) {
    for (uint32_t t = 0; t < tensors_; ++t) {
      std::ranges::fill(grads(t), gradient);
      client_.submit(t, step);
    }
  }
  void Start(uint64_t step) {
    client_.step(step, {{kRate, 0.0, 0.9, 0.0}, {kRate, 0.0, 0.9, 0.95}});
  }
  dmuon_step_result Wait(uint64_t step) { return client_.wait(step, kPatienceMs); }
  dmuon_step_result Run(uint64_t step, float gradient) {
    Submit(step, gradient);
    Start(step);
    return Wait(step);
  }

  std::span<float> params(uint32_t tensor) { return Floats(client_.param_buffer(tensor)); }
  std::span<float> grads(uint32_t tensor) { return Floats(client_.grad_buffer(tensor)); }
  // All parameters, one after the other.
  std::vector<float> Parameters() {
    std::vector<float> all;
    for (uint32_t t = 0; t < tensors_; ++t) {
      const std::span<float> piece = params(t);
      all.insert(all.end(), piece.begin(), piece.end());
    }
    return all;
  }

 private:
  static Config MakeConfig(const std::string& address, const std::string& job, uint32_t rank,
                           uint32_t world_size, dmuon_missing_t missing) {
    Config config;
    config.address = address.c_str();
    config.job_id = job.c_str();
    config.rank = rank;
    config.world_size = world_size;
    config.missing_gradient = missing;
    config.connect_timeout_ms = kPatienceMs;
    return config;
  }
  static std::span<float> Floats(const Buffer& buffer) {
    return {buffer.as<float>(), buffer.bytes / sizeof(float)};
  }

  Client client_;
  uint32_t muon_ = 0;
  uint32_t adamw_ = 0;
  uint32_t tensors_ = 0;
};

// Runs fn(rank) on a thread for each rank; calls that need every rank would wait for ever
// otherwise.
inline void OnAllRanks(uint32_t world_size, const std::function<void(uint32_t)>& fn) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&fn, rank] {
      try {
        fn(rank);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dmuon::client
