// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The arithmetic of a step: matrices in, matrices out. A backend knows no network, keeps no state
// between calls and starts no threads but those of its callers' teams.
//
// All matrices are row-major, contiguous fp32. A call works on one unit: a whole matrix for
// optimizers that orthogonalise, any run of elements for element-wise ones. Buffers of one call
// must not overlap unless the comment says so.
//
// Threads: a Backend may be used from several threads at once; each thread brings its own Scratch
// and calls `BindThread` once before its first other call. The bits of a result do not depend on the number
// of threads or on what other threads do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/optimizer.h"

namespace dmuon::kernels {

enum class DType : uint8_t { kFloat32, kBFloat16 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// A matrix inside a caller's buffer: `rows` x `cols` elements, row-major, no gap between rows.
struct MatrixView {
  float* data;
  int64_t rows;
  int64_t cols;
};

// One unit: its weight, and the state tensors that StateTensors lists, empty where the optimizer has none. A
// unit of an element-wise optimizer is one row. `step` counts the updates applied so far; a 64-bit integer,
// so that it never saturates.
template <typename T>
struct BasicUnitState {
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<T> weight;
  std::span<T> momentum;
  std::span<T> second_moment;
  std::span<T> column_moment;
  std::span<T> slow_gradient;
  std::span<T> basis;
  int64_t step = 0;
};
using UnitState = BasicUnitState<float>;

// `tensors`: a buffer for each of StateTensors, in its order and of its size.
UnitState BindState(const Optimizer& optimizer, int64_t rows, int64_t cols, std::span<float> weight,
                    std::span<std::vector<float>> tensors, int64_t step);

// What one pass over a gradient finds. `finite` is false for a NaN or an infinity anywhere; then
// the other two mean nothing. The sum is taken in double, in an order that only the length decides, so it is the
// same on every run, for every team and on every CPU.
struct GradientStats {
  double sum_squares = 0.0;
  double max_abs = 0.0;
  bool finite = true;
};

// Working memory of one thread; grows to the largest unit seen and is reused.
class Scratch {
 public:
  // `count` floats, uninitialised, aligned to a cache line; `index` tells apart buffers that live at one
  // time.
  std::span<float> Get(size_t index, size_t count);
  // For the i-th of several matrices that are worked on at one time. Not while another thread uses this.
  Scratch& Part(size_t i);

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  struct Buffer {
    std::unique_ptr<float, Free> data;
    size_t count = 0;
  };
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<Scratch>> parts_;
};

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // What it computes on, as far as that decides how long it takes: the processor's model and the instructions
  // that are used.
  [[nodiscard]] virtual std::string device() const = 0;

  // INVALID_ARGUMENT naming the stage when this backend has no kernels for it; the optimizer is valid otherwise.
  [[nodiscard]] virtual absl::Status Supports(const Optimizer& /*optimizer*/) const { return absl::OkStatus(); }

  // Gives the calling thread a team of `threads` (at least 1, itself included) from now on. Teams
  // of different threads may differ in size.
  virtual void BindThread(int threads) = 0;

  // to[i] = from[i] as fp32. Exact.
  virtual void CastToFloat(DType dtype, const void* from, std::span<float> to) = 0;
  // to[i] += from[i] as fp32, each sum rounded once.
  virtual void AddToFloat(DType dtype, const void* from, std::span<float> to) = 0;
  // to[i] = from[i] in `dtype`, rounded to nearest even; NaN stays NaN.
  virtual void CastFromFloat(std::span<const float> from, DType dtype, void* to) = 0;

  // values[i] *= factor. `factor` 1 leaves the bits alone.
  virtual void Multiply(double factor, std::span<float> values) = 0;

  virtual GradientStats Measure(std::span<const float> gradient) = 0;

  // All stages before Newton-Schulz (or top-k), of clip*gradient. `state` is not changed. Returns the matrix to
  // orthogonalise: it lies at the front of `update`, which has UpdateSize floats, and is smaller than the unit
  // when the optimizer selects lines. Behind the unit's size lies the state's basis. Only for optimizers that
  // orthogonalise. `clip` is the global-norm factor, in (0, 1].
  virtual MatrixView Direction(const Optimizer& optimizer, const Hyper& hyper, double clip,
                               std::span<const float> gradient, const UnitState& state,
                               std::span<float> update) = 0;

  // x <- NewtonSchulz(x), in place; a zero or empty matrix stays as it is.
  // INVALID_ARGUMENT when x is not finite (x stays as it is) or a dimension is out of range; ABORTED when
  // the Gram form diverged, which the standard form on the same input does not; INTERNAL when the result is
  // not finite although x was. After the latter two x holds nothing of use.
  virtual absl::Status Orthogonalize(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                                     Scratch& scratch) = 0;

  // How many matrices of this shape the calling thread orthogonalizes in less time together than one by one; 1: none.
  [[nodiscard]] virtual size_t BatchSize(const MatrixShape& /*shape*/) const { return 1; }
  // Orthogonalize of each matrix of `batch`, all of one shape and in memory of their own, with the same bits.
  // `statuses` has an entry for each.
  virtual void OrthogonalizeBatch(const NewtonSchulz& newton_schulz, const Method& method,
                                  std::span<const MatrixView> batch, std::span<absl::Status> statuses, Scratch& scratch);

  // x <- U_k V_k^T of its k = RankAt(top_k, step, ...) largest singular values, in place; all that are kept become 1.
  // A zero matrix stays as it is, and so does `basis`, which has BasisShape's shape and lies behind the unit in what
  // Direction filled: the search starts from it, and its place is taken by the new singular vectors. Where the
  // k-th and the next value are (nearly) equal, the result is one of many.
  // INVALID_ARGUMENT when x is not finite (x stays as it is); INTERNAL when the result is not.
  virtual absl::Status OrthogonalizeTopK(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis,
                                         Scratch& scratch) = 0;

  // Whichever of the two the optimizer has. `direction` is what Direction returned for `update`, and `state`.
  absl::Status OrthogonalizeDirection(const Optimizer& optimizer, const Method& method, MatrixView direction,
                                      const UnitState& state, std::span<float> update, Scratch& scratch);

  // Commits the step: all state, weight decay and weight, and `state.step` += 1.
  //   orthogonalising:  `update` as Direction laid it out, and used up;
  //                     W <- W*(1 - lr*wd) - lr*scale*(update after the stages that follow Newton-Schulz), with
  //                     the scale of the unit's shape
  //   element-wise:     `update` is empty; it is bias-corrected m / (sqrt(v) + eps), as torch.optim.AdamW
  virtual void Apply(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
                     std::span<float> update, UnitState& state) = 0;
};

// "reference": plain loops in double, the judge. "cpu": products in blocks, symmetric ones by half. "cuda": on a
// GPU, from a plug-in (LoadBackend of plugin.h says where it lies and how that fails); UNAVAILABLE without a device.
// INVALID_ARGUMENT listing the names when `name` is none of them.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name);

}  // namespace dmuon::kernels
