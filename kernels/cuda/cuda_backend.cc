// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/matrix_kernels.h"
#include "kernels/cuda/newton_schulz.h"
#include "kernels/cuda/stages.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/top_k.h"
#include "kernels/newton_schulz.h"

namespace dmuon::kernels::cuda {
namespace {

constexpr int kOldestMajor = 8;

void DieUnless(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "fatal: %s\n", status.ToString().c_str());
  std::abort();
}

std::string Shaped(const char* call, const UnitState& state) {
  return absl::StrCat(call, " of ", state.rows, " x ", state.cols);
}

std::span<const std::byte> Bytes(DType dtype, const void* data, size_t count) {
  return {static_cast<const std::byte*>(data), count * SizeOf(dtype)};
}

// One call: its stream, and its spans.
class Call {
 public:
  explicit Call(std::string what) : stream(Stream::OfThread()), staging(stream) { stream.Begin(std::move(what)); }
  Call(const char* name, size_t elements) : Call(absl::StrCat(name, " of ", elements, " elements")) {}

  Stream& stream;
  Staging staging;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::string device) : device_(std::move(device)) {}

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] std::string device() const override { return device_; }

  // The device has its own threads; the calling thread gets its stream.
  void BindThread(int /*threads*/) override { DieUnless(Call("BindThread").stream.Finish()); }

  void CastToFloat(DType dtype, const void* from, std::span<float> to) override {
    Call call("CastToFloat", to.size());
    const auto* source = call.staging.Read(Bytes(dtype, from, to.size()));
    float* target = call.staging.Write(to);
    if (dtype == DType::kFloat32) {
      call.stream.Copy(target, source, to.size_bytes());
    } else {
      call.stream.Do("CastToFloat", [&](cudaStream_t on) {
        return cuda::CastToFloat(on, Count(to), reinterpret_cast<const uint16_t*>(source), target);
      });
    }
    DieUnless(call.staging.Finish());
  }

  void AddToFloat(DType dtype, const void* from, std::span<float> to) override {
    Call call("AddToFloat", to.size());
    const auto* source = call.staging.Read(Bytes(dtype, from, to.size()));
    float* target = call.staging.Update(to);
    call.stream.Do("Add", [&](cudaStream_t on) {
      return dtype == DType::kFloat32 ? Add(on, Count(to), reinterpret_cast<const float*>(source), target)
                                      : Add(on, Count(to), reinterpret_cast<const uint16_t*>(source), target);
    });
    DieUnless(call.staging.Finish());
  }

  void CastFromFloat(std::span<const float> from, DType dtype, void* to) override {
    Call call("CastFromFloat", from.size());
    const float* source = call.staging.Read(from);
    auto* target = call.staging.Write(std::span(static_cast<std::byte*>(to), from.size() * SizeOf(dtype)));
    if (dtype == DType::kFloat32) {
      call.stream.Copy(target, source, from.size_bytes());
    } else {
      call.stream.Do("CastToBf16", [&](cudaStream_t on) {
        return CastToBf16(on, Count(from), source, reinterpret_cast<uint16_t*>(target));
      });
    }
    DieUnless(call.staging.Finish());
  }

  void Multiply(double factor, std::span<float> values) override {
    if (factor == 1.0) return;
    Call call("Multiply", values.size());
    float* target = call.staging.Update(values);
    call.stream.Do("Multiply",
                   [&](cudaStream_t on) { return cuda::Multiply(on, Count(values), factor, target, target); });
    DieUnless(call.staging.Finish());
  }

  GradientStats Measure(std::span<const float> gradient) override {
    Call call("Measure", gradient.size());
    const GradientStats stats = MeasureOnDevice(call.stream, call.staging.Read(gradient), Count(gradient));
    DieUnless(call.staging.Finish());
    return stats;
  }

  MatrixView Direction(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
                       const UnitState& state, std::span<float> update) override {
    Call call(Shaped("Direction", state));
    const MatrixShape shape =
        MakeDirection(optimizer, hyper, clip, gradient, state, update, call.stream, call.staging);
    DieUnless(call.staging.Finish());
    return {update.data(), shape.rows, shape.cols};
  }

  absl::Status Orthogonalize(const NewtonSchulz& newton_schulz, const Method& method, MatrixView x,
                             Scratch& /*scratch*/) override {
    if (absl::Status status = CheckDimensions(x); !status.ok()) return status;
    Call call(absl::StrCat("Orthogonalize of ", x.rows, " x ", x.cols));
    const MatrixBatch on_device{call.staging.Update(Elements(x)), x.rows, x.cols, 1};
    absl::Status result;
    OrthogonalizeOnDevice(newton_schulz, method, on_device, std::span(&result, 1), call.stream);
    const absl::Status device = call.staging.Finish(result.ok());
    return device.ok() ? result : device;  // after a device error the result is of zeros
  }

  [[nodiscard]] size_t BatchSize(const MatrixShape& shape) const override { return DeviceBatchSize(shape); }

  void OrthogonalizeBatch(const NewtonSchulz& newton_schulz, const Method& method, std::span<const MatrixView> batch,
                          std::span<absl::Status> statuses, Scratch& scratch) override {
    const size_t most = batch.empty() ? 1 : DeviceBatchSize({batch[0].rows, batch[0].cols});
    if (most == 1) return Backend::OrthogonalizeBatch(newton_schulz, method, batch, statuses, scratch);
    for (size_t i = 0; i < batch.size(); i += most) {
      const size_t count = std::min(most, batch.size() - i);
      OrthogonalizeTogether(newton_schulz, method, batch.subspan(i, count), statuses.subspan(i, count));
    }
  }

  absl::Status OrthogonalizeTopK(const TopK& top_k, int64_t step, MatrixView x, MatrixView basis,
                                 Scratch& scratch) override {
    Call call(absl::StrCat("OrthogonalizeTopK of ", x.rows, " x ", x.cols));
    const MatrixView on_device{call.staging.Update(Elements(x)), x.rows, x.cols};
    // The host works on the basis.
    std::vector<float> vectors(Elements(basis).size());
    call.stream.Download(vectors.data(), basis.data, vectors.size());
    const MatrixView on_host{vectors.data(), basis.rows, basis.cols};
    absl::Status result = OrthogonalizeTopKOnDevice(top_k, step, on_device, on_host, scratch, call.stream);
    if (result.ok()) call.stream.Upload(basis.data, vectors);
    const absl::Status device = call.staging.Finish(result.ok());
    return device.ok() ? result : device;  // after a device error the result is of zeros
  }

  void Apply(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
             std::span<float> update, UnitState& state) override {
    Call call(Shaped("Apply", state));
    ApplyStep(optimizer, hyper, clip, gradient, update, state, call.stream, call.staging);
    DieUnless(call.staging.Finish());
  }

 private:
  static std::span<float> Elements(MatrixView x) {
    return {x.data, static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols)};
  }
  template <typename T>
  static int64_t Count(std::span<T> span) {
    return static_cast<int64_t>(span.size());
  }

  static void OrthogonalizeTogether(const NewtonSchulz& newton_schulz, const Method& method,
                                    std::span<const MatrixView> batch, std::span<absl::Status> statuses) {
    const MatrixView first = batch.front();
    Call call(absl::StrCat("Orthogonalize of ", batch.size(), " times ", first.rows, " x ", first.cols));
    const MatrixBatch x{call.staging.Gather(batch), first.rows, first.cols, static_cast<int64_t>(batch.size())};
    OrthogonalizeOnDevice(newton_schulz, method, x, statuses, call.stream);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (statuses[i].ok()) call.staging.Return(batch[i], x.data + static_cast<int64_t>(i) * x.rows * x.cols);
    }
    const absl::Status device = call.staging.Finish();
    if (!device.ok()) std::fill(statuses.begin(), statuses.end(), device);
  }

  const std::string device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend() {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no CUDA device: cudaGetDeviceCount: ", Describe(error)));
  }
  if (devices == 0) return absl::UnavailableError("no CUDA device: cudaGetDeviceCount counts 0");
  cudaDeviceProp device{};
  if (const cudaError_t error = cudaGetDeviceProperties(&device, kDevice); error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", kDevice, ": cudaGetDeviceProperties: ", Describe(error)));
  }
  if (device.major < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat("CUDA device ", kDevice, " (", device.name,
                                                      ") has compute capability ", device.major, ".", device.minor,
                                                      "; must be at least ", kOldestMajor, ".0"));
  }
  return std::make_unique<CudaBackend>(absl::StrCat(device.name, ", sm_", device.major, device.minor));
}

}  // namespace dmuon::kernels::cuda
