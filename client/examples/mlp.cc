// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "client/examples/mlp.h"

#include <cmath>
#include <cstddef>
#include <cstring>

namespace example {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): small, and the same on every machine, unlike the
// distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Uniform in [-1, 1).
  float Uniform() { return static_cast<float>(static_cast<double>(Next() >> 11) * 0x1p-52 - 1.0); }

 private:
  uint64_t state_;
};

Parameter MakeParameter(const char* name, int64_t rows, int64_t cols, bool is_matrix,
                        Random& random) {
  Parameter p{name, rows, cols, is_matrix, {}, {}};
  const auto size = static_cast<size_t>(rows * cols);
  const float bound = is_matrix ? 1.0F / std::sqrt(static_cast<float>(cols)) : 0.0F;
  p.grad.assign(size, 0.0F);
  for (size_t i = 0; i < size; ++i) p.value.push_back(bound * random.Uniform());
  return p;
}

// y = W x + b, then tanh unless `linear`.
void Layer(const Parameter& w, const Parameter& b, const float* x, bool linear,
           std::vector<float>& y) {
  for (int64_t r = 0; r < w.rows; ++r) {
    float sum = b.value[static_cast<size_t>(r)];
    const float* row = w.value.data() + r * w.cols;
    for (int64_t c = 0; c < w.cols; ++c) sum += row[c] * x[c];
    y[static_cast<size_t>(r)] = linear ? sum : std::tanh(sum);
  }
}

// Adds dW and db of one sample and returns dx.
std::vector<float> LayerGradient(Parameter& w, Parameter& b, const float* x,
                                 const std::vector<float>& dy) {
  std::vector<float> dx(static_cast<size_t>(w.cols), 0.0F);
  for (int64_t r = 0; r < w.rows; ++r) {
    const float d = dy[static_cast<size_t>(r)];
    b.grad[static_cast<size_t>(r)] += d;
    for (int64_t c = 0; c < w.cols; ++c) {
      const auto i = static_cast<size_t>(r * w.cols + c);
      w.grad[i] += d * x[c];
      dx[static_cast<size_t>(c)] += w.value[i] * d;
    }
  }
  return dx;
}

// The derivative of tanh by its output.
void ThroughTanh(const std::vector<float>& y, std::vector<float>& dy) {
  for (size_t i = 0; i < y.size(); ++i) dy[i] *= 1.0F - y[i] * y[i];
}

}  // namespace

Batch MakeBatch(uint64_t seed, uint64_t step, uint32_t rank, int samples) {
  Random random(Random(seed ^ (step << 20) ^ rank).Next());
  Batch batch{samples, {}, {}};
  for (int s = 0; s < samples; ++s) {
    const size_t first = batch.inputs.size();
    for (int i = 0; i < kInputs; ++i) batch.inputs.push_back(random.Uniform());
    const float* x = batch.inputs.data() + first;
    for (int o = 0; o < kOutputs; ++o) {
      batch.targets.push_back(0.4F * std::sin(3.0F * x[o]) + 0.6F * x[o + kOutputs]);
    }
  }
  return batch;
}

Mlp::Mlp(uint64_t seed)
    : activations_{std::vector<float>(kHidden), std::vector<float>(kHidden),
                   std::vector<float>(kOutputs)} {
  Random random(seed);
  parameters_.push_back(MakeParameter("layer1.weight", kHidden, kInputs, true, random));
  parameters_.push_back(MakeParameter("layer1.bias", kHidden, 1, false, random));
  parameters_.push_back(MakeParameter("layer2.weight", kHidden, kHidden, true, random));
  parameters_.push_back(MakeParameter("layer2.bias", kHidden, 1, false, random));
  parameters_.push_back(MakeParameter("layer3.weight", kOutputs, kHidden, true, random));
  parameters_.push_back(MakeParameter("layer3.bias", kOutputs, 1, false, random));
}

void Mlp::Forward(const float* input) {
  Layer(parameters_[0], parameters_[1], input, false, activations_[0]);
  Layer(parameters_[2], parameters_[3], activations_[0].data(), false, activations_[1]);
  Layer(parameters_[4], parameters_[5], activations_[1].data(), true, activations_[2]);
}

void Mlp::Backward(const float* input, const std::vector<float>& output_gradient) {
  std::vector<float> d =
      LayerGradient(parameters_[4], parameters_[5], activations_[1].data(), output_gradient);
  ThroughTanh(activations_[1], d);
  d = LayerGradient(parameters_[2], parameters_[3], activations_[0].data(), d);
  ThroughTanh(activations_[0], d);
  LayerGradient(parameters_[0], parameters_[1], input, d);
}

double Mlp::LossAndGradients(const Batch& batch) {
  for (Parameter& p : parameters_) p.grad.assign(p.grad.size(), 0.0F);
  const float factor = 2.0F / static_cast<float>(batch.samples * kOutputs);
  double squares = 0;
  std::vector<float> output_gradient(kOutputs);
  for (int s = 0; s < batch.samples; ++s) {
    const float* input = batch.inputs.data() + static_cast<std::ptrdiff_t>(s) * kInputs;
    const float* target = batch.targets.data() + static_cast<std::ptrdiff_t>(s) * kOutputs;
    Forward(input);
    for (size_t o = 0; o < kOutputs; ++o) {
      const float error = activations_[2][o] - target[o];
      squares += static_cast<double>(error) * static_cast<double>(error);
      output_gradient[o] = factor * error;
    }
    Backward(input, output_gradient);
  }
  return squares / (batch.samples * kOutputs);
}

uint64_t Checksum(const Mlp& model) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const Parameter& p : model.parameters()) {
    for (const float value : p.value) {
      unsigned char bytes[sizeof(value)];
      std::memcpy(bytes, &value, sizeof(value));
      for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001B3ULL;
    }
  }
  return hash;
}

}  // namespace example
