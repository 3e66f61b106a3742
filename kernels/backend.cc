// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/reference_backend.h"
#include "kernels/plugin.h"

namespace dmuon::kernels {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::span<float> Scratch::Get(size_t index, size_t count) {
  // Moving a buffer keeps its storage, so spans of other indices stay valid.
  if (buffers_.size() <= index) buffers_.resize(index + 1);
  Buffer& buffer = buffers_[index];
  if (buffer.count < count || buffer.data == nullptr) {
    buffer = {};  // nothing to copy on growth
    const bool large = count * sizeof(float) >= kHugePage;
    const size_t unit = large ? kHugePage : kCacheLine;
    const size_t bytes = RoundUp(std::max<size_t>(count * sizeof(float), 1), unit);
    buffer.data.reset(static_cast<float*>(std::aligned_alloc(unit, bytes)));
    if (buffer.data == nullptr) throw std::bad_alloc();
    // Products walk over all of it; with pages of 4 KiB a tenth of their time goes to looking those up. Advice,
    // so that it does not matter when it is not taken.
    if (large) madvise(buffer.data.get(), bytes, MADV_HUGEPAGE);
    buffer.count = count;
  }
  return {buffer.data.get(), count};
}

Scratch& Scratch::Part(size_t i) {
  while (parts_.size() <= i) parts_.push_back(std::make_unique<Scratch>());
  return *parts_[i];
}

void Backend::OrthogonalizeBatch(const NewtonSchulz& newton_schulz, const Method& method,
                                 std::span<const MatrixView> batch, std::span<absl::Status> statuses, Scratch& scratch) {
  for (size_t i = 0; i < batch.size(); ++i) statuses[i] = Orthogonalize(newton_schulz, method, batch[i], scratch);
}

UnitState BindState(const Optimizer& optimizer, int64_t rows, int64_t cols, std::span<float> weight,
                    std::span<std::vector<float>> tensors, int64_t step) {
  UnitState state{.rows = rows, .cols = cols, .weight = weight, .momentum = {}, .second_moment = {},
                  .column_moment = {}, .slow_gradient = {}, .basis = {}, .step = step};
  size_t i = 0;
  for (const StateTensor& tensor : StateTensors(optimizer, rows, cols)) {
    const std::span<float> values(tensors[i++]);
    if (tensor.name == "momentum") state.momentum = values;
    if (tensor.name == "second_moment") state.second_moment = values;
    if (tensor.name == "column_moment") state.column_moment = values;
    if (tensor.name == "slow_gradient") state.slow_gradient = values;
    if (tensor.name == "basis") state.basis = values;
  }
  return state;
}

absl::Status Backend::OrthogonalizeDirection(const Optimizer& optimizer, const Method& method, MatrixView direction,
                                             const UnitState& state, std::span<float> update, Scratch& scratch) {
  if (optimizer.orthogonalizer != Orthogonalizer::kTopK) {
    return Orthogonalize(optimizer.newton_schulz, method, direction, scratch);
  }
  const auto [kept, length] = BasisShape(optimizer, state.rows, state.cols);
  const MatrixView basis = {update.data() + state.weight.size(), kept, length};
  return OrthogonalizeTopK(optimizer.top_k, state.step, direction, basis, scratch);
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name) {
  if (name == "reference") return MakeReferenceBackend();
  if (name == "cpu") return MakeCpuBackend();
  if (name == "cuda") return LoadBackend(name, "libdmuon_cuda.so", "DMUON_CUDA_PLUGIN");
  return absl::InvalidArgumentError(absl::StrCat("kernels backend is \"", std::string(name),
                                                 "\"; must be one of: reference, cpu, cuda"));
}

}  // namespace dmuon::kernels
