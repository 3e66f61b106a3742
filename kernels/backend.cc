// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/backend.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/reference_backend.h"

namespace dmuon::kernels {

std::span<float> Scratch::Get(size_t index, size_t count) {
  // Moving the inner vectors keeps their storage, so spans of other indices stay valid.
  if (buffers_.size() <= index) buffers_.resize(index + 1);
  std::vector<float>& buffer = buffers_[index];
  if (buffer.size() < count) {
    buffer.clear();  // nothing to copy on growth
    buffer.resize(count);
  }
  return std::span<float>(buffer).first(count);
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name) {
  if (name == "reference") return MakeReferenceBackend();
  if (name == "cpu") return MakeCpuBackend();
  return absl::InvalidArgumentError(absl::StrCat("kernels backend is \"", std::string(name),
                                                 "\"; must be one of: reference, cpu"));
}

}  // namespace dmuon::kernels
