// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A client and a scripted daemon.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/src/client.h"
#include "tests/client/fake_node.h"
#include "wire/error.h"

namespace dmuon::client {

inline constexpr Timeout kForever = std::nullopt;
inline constexpr Timeout kPoll = std::chrono::milliseconds(0);

class ScriptedTest : public ::testing::Test {
 protected:
  ScriptedTest() {
    char name[] = "/tmp/dmuon-scripted-XXXXXX";
    directory_ = ::mkdtemp(name);
    node_ = std::make_unique<FakeNode>(directory_);
  }
  ~ScriptedTest() override {
    client_.reset();
    node_.reset();
    std::filesystem::remove_all(directory_);
  }

  Endpoint At(const std::string& address) {
    Endpoint endpoint;
    endpoint.address = address;
    endpoint.connect_timeout = std::chrono::milliseconds(5000);
    endpoint.call_timeout = std::chrono::milliseconds(5000);
    return endpoint;
  }
  static v1::JobSpec Job() {
    v1::JobSpec job;
    job.set_job_id("job");
    job.set_world_size(1);
    job.set_missing_gradient(v1::MISSING_GRADIENT_ERROR);
    return job;
  }
  absl::Status Open() { return Open(At(node_->address())); }
  absl::Status Open(Endpoint endpoint) {
    auto client = Client::Open(std::move(endpoint), Job());
    if (client.ok()) client_ = *std::move(client);
    return client.status();
  }

  // One AdamW vector of 3 floats, so that every value can be followed by hand.
  void AddTensor() {
    v1::Group group;
    group.set_name("all");
    group.mutable_adamw()->set_eps(1e-8);
    ASSERT_TRUE(client_->AddGroup(group).ok());
    v1::Tensor tensor;
    tensor.set_name("bias");
    tensor.add_shape(3);
    tensor.set_param_dtype(v1::DTYPE_FLOAT32);
    tensor.set_grad_dtype(v1::DTYPE_FLOAT32);
    v1::Shard shard;
    for (v1::Box* box : {shard.mutable_grad_box(), shard.mutable_param_box()}) {
      box->add_offset(0);
      box->add_length(3);
    }
    shard.set_reduced(true);
    ASSERT_TRUE(client_->AddTensor(tensor, shard).ok());
  }
  void Attach() {
    ASSERT_EQ(Open(), absl::OkStatus());
    AddTensor();
    ASSERT_EQ(client_->Register(kForever).status(), absl::OkStatus());
    params_ = Floats(*client_->Parameter(0));
    grads_ = Floats(*client_->Gradient(0));
    std::fill(params_.begin(), params_.end(), 10.0F);
    ASSERT_EQ(client_->Begin(kForever).status(), absl::OkStatus());
  }
  static std::span<float> Floats(std::span<std::byte> bytes) {
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  absl::Status Start(uint64_t step, float gradient) {
    std::fill(grads_.begin(), grads_.end(), gradient);
    const uint32_t tensor = 0;
    DMUON_RETURN_IF_ERROR(client_->Submit(std::span(&tensor, 1), step, wire::WordState::kReady));
    return client_->Step(step, {v1::Hyper()});
  }
  absl::StatusOr<v1::StepResponse> Run(uint64_t step, float gradient) {
    DMUON_RETURN_IF_ERROR(Start(step, gradient));
    return client_->Wait(step, kForever);
  }

  std::string directory_;
  std::unique_ptr<FakeNode> node_;
  std::unique_ptr<Client> client_;
  std::span<float> params_;
  std::span<float> grads_;
};

}  // namespace dmuon::client
