// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A three-layer perceptron and a regression task for it: what a trainer looks like that knows
// nothing of PyTorch. Plain loops in float, one thread, a fixed order of sums: the same bits on
// every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace example {

// One parameter and its gradient, row-major. Biases are rows x 1 with `is_matrix` false.
struct Parameter {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 1;
  bool is_matrix = false;
  std::vector<float> value;
  std::vector<float> grad;
};

// Inputs and targets of one step on one rank; sample after sample.
struct Batch {
  int samples = 0;
  std::vector<float> inputs;   // samples x kInputs
  std::vector<float> targets;  // samples x kOutputs
};

inline constexpr int kInputs = 16;
inline constexpr int kHidden = 48;
inline constexpr int kOutputs = 8;

// Depends on nothing but its arguments: a restarted rank sees the same data. The targets come from
// a fixed function of the inputs, the same on all ranks.
Batch MakeBatch(uint64_t seed, uint64_t step, uint32_t rank, int samples);

class Mlp {
 public:
  // The same values on every rank that uses the same seed.
  explicit Mlp(uint64_t seed);

  // Mean squared error of the batch; overwrites every gradient with that of the batch alone.
  double LossAndGradients(const Batch& batch);

  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  void Forward(const float* input);
  void Backward(const float* input, const std::vector<float>& output_gradient);

  std::vector<Parameter> parameters_;            // w1 b1 w2 b2 w3 b3
  std::vector<std::vector<float>> activations_;  // outputs of the three layers
};

// FNV-1a over the bytes of all values, in order.
uint64_t Checksum(const Mlp& model);

}  // namespace example
