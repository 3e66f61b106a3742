// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A state that the daemon has given, where the trainer reads it.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "wire/scoped_fd.h"

namespace dmuon::client {

class StateView {
 public:
  // FAILED_PRECONDITION when it is no memfd, or not sealed: then it could shrink under its reader.
  static absl::StatusOr<StateView> Map(wire::ScopedFd fd);

  StateView() = default;
  StateView(StateView&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  StateView& operator=(StateView&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StateView();

  [[nodiscard]] bool mapped() const { return !bytes_.empty(); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit StateView(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace dmuon::client
