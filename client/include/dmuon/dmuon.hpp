// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// C++ over the C ABI of dmuon.h, header only: a class that closes itself, and exceptions instead of
// status codes. It adds nothing else; the contract of every call is in dmuon.h.
//
//   dmuon::Config config;
//   config.job_id = "run-7";
//   dmuon::Client client(config);
//   const uint32_t group = client.add_group(dmuon::Group("hidden", DMUON_MUON));
//   ...
#pragma once

#include <dmuon/dmuon.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dmuon {

// What a call answered other than DMUON_OK; what() begins with the name of the status.
class Error : public std::runtime_error {
 public:
  Error(dmuon_status_t status, const std::string& message)
      : std::runtime_error(std::string(dmuon_status_name(status)) + ": " + message),
        status_(status) {}

  [[nodiscard]] dmuon_status_t status() const noexcept { return status_; }

 private:
  dmuon_status_t status_;
};

// Throws unless `status` is DMUON_OK. On the thread of the failed call.
inline void Check(dmuon_status_t status) {
  if (status != DMUON_OK) throw Error(status, dmuon_last_error());
}

// The C structs with their initial values set; strings are not copied until the call.
struct Config : dmuon_config {
  Config() : dmuon_config DMUON_CONFIG_INIT {}
};

struct Group : dmuon_group {
  Group(const char* group_name, dmuon_algorithm_t group_algorithm) : dmuon_group DMUON_GROUP_INIT {
    name = group_name;
    algorithm = group_algorithm;
  }
};

// A tensor that this worker holds whole: the box that DDP and owned mode register.
struct WholeTensor : dmuon_tensor {
  WholeTensor(const char* tensor_name, const std::vector<int64_t>& sizes, uint32_t group_index)
      : dmuon_tensor DMUON_TENSOR_INIT {
    if (sizes.size() > DMUON_MAX_DIMS) {
      throw Error(DMUON_INVALID_ARGUMENT, std::string(tensor_name) + " has too many dimensions");
    }
    name = tensor_name;
    ndim = static_cast<int32_t>(sizes.size());
    group = group_index;
    for (size_t d = 0; d < sizes.size(); ++d) {
      shape[d] = grad_box.length[d] = param_box.length[d] = sizes[d];
    }
  }
};

// A piece of the arena.
struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;

  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(data);
  }
};

// Where a trainer goes on after begin().
struct Position {
  uint64_t last_step = 0;
  bool resumed = false;
};

// Owns a session; movable. A moved-from Client may only be destroyed or assigned to.
class Client {
 public:
  explicit Client(const dmuon_config& config) { Check(dmuon_open(&config, &handle_)); }
  Client(Client&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Client() { dmuon_close(handle_); }

  uint32_t add_group(const dmuon_group& group) {
    uint32_t index = 0;
    Check(dmuon_add_group(handle_, &group, &index));
    return index;
  }
  uint32_t add_tensor(const dmuon_tensor& tensor) {
    uint32_t index = 0;
    Check(dmuon_add_tensor(handle_, &tensor, &index));
    return index;
  }

  // Negative timeouts wait without end, here and below. `register` is a keyword.
  dmuon_plan_info register_tensors(int32_t timeout_ms = -1) {
    dmuon_plan_info info = DMUON_PLAN_INFO_INIT;
    Check(dmuon_register(handle_, timeout_ms, &info));
    return info;
  }
  [[nodiscard]] Buffer grad_buffer(uint32_t tensor) const {
    Buffer buffer;
    Check(dmuon_grad_buffer(handle_, tensor, &buffer.data, &buffer.bytes));
    return buffer;
  }
  [[nodiscard]] Buffer param_buffer(uint32_t tensor) const {
    Buffer buffer;
    Check(dmuon_param_buffer(handle_, tensor, &buffer.data, &buffer.bytes));
    return buffer;
  }
  Position begin(int32_t timeout_ms = -1) {
    Position position;
    int32_t resumed = 0;
    Check(dmuon_begin(handle_, timeout_ms, &position.last_step, &resumed));
    position.resumed = resumed != 0;
    return position;
  }

  void expect_gradients(uint64_t step) { Check(dmuon_expect_gradients(handle_, step)); }
  void submit(uint32_t tensor, uint64_t step) { Check(dmuon_submit(handle_, &tensor, 1, step)); }
  void submit(const std::vector<uint32_t>& tensors, uint64_t step) {
    Check(dmuon_submit(handle_, tensors.data(), tensors.size(), step));
  }
  void submit_missing(uint32_t tensor, uint64_t step) {
    Check(dmuon_submit_missing(handle_, &tensor, 1, step));
  }
  void multiply_rows(uint32_t tensor, int64_t first_row, int64_t rows_each, const std::vector<double>& factors) {
    Check(dmuon_multiply_rows(handle_, tensor, first_row, rows_each, factors.data(), factors.size()));
  }
  void step(uint64_t step, const std::vector<dmuon_hyper>& hypers) {
    Check(dmuon_step(handle_, step, hypers.data(), hypers.size()));
  }
  void wait_params(const std::vector<uint32_t>& tensors, uint64_t step, int32_t timeout_ms = -1) {
    Check(dmuon_wait_params(handle_, tensors.data(), tensors.size(), step, timeout_ms));
  }
  dmuon_step_result wait(uint64_t step, int32_t timeout_ms = -1) {
    dmuon_step_result result = DMUON_STEP_RESULT_INIT;
    Check(dmuon_wait(handle_, step, timeout_ms, &result));
    return result;
  }

  void save(const std::string& name, int32_t timeout_ms = -1) { Check(dmuon_save(handle_, name.c_str(), timeout_ms)); }
  void wait_saved(const std::string& name, int32_t timeout_ms = -1) {
    Check(dmuon_wait_saved(handle_, name.c_str(), timeout_ms));
  }
  // The step that the checkpoint is of.
  uint64_t restore(const std::string& name, int32_t timeout_ms = -1) {
    uint64_t last_step = 0;
    Check(dmuon_restore(handle_, name.c_str(), timeout_ms, &last_step));
    return last_step;
  }

  // This node's part of the state, to be read until release_state.
  std::string_view export_state(int32_t timeout_ms = -1) {
    const void* data = nullptr;
    size_t bytes = 0;
    Check(dmuon_export_state(handle_, timeout_ms, &data, &bytes));
    return {static_cast<const char*>(data), bytes};
  }
  void release_state() { Check(dmuon_release_state(handle_)); }
  // The step that the state is of. `fd` -1: another worker brings it.
  uint64_t import_state(int fd, const std::string& digest, int32_t timeout_ms = -1) {
    uint64_t last_step = 0;
    Check(dmuon_import_state(handle_, fd, digest.c_str(), timeout_ms, &last_step));
    return last_step;
  }

 private:
  dmuon_client* handle_ = nullptr;
};

}  // namespace dmuon
