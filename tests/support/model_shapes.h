// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The matrices that a matrix optimizer gets of public models, embeddings and heads left out. From
// the models' config.json on Hugging Face: hidden size d, intermediate size f, query heads x head
// size q, key/value heads x head size v give q, v, o, gate, up and down as q x d, v x d, d x q,
// f x d, f x d and d x f.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/plan/cost.h"

namespace dmuon::plan {

struct MatrixShape {
  int64_t rows, cols;  // rows = fan-out
  int copies = 1;      // in each layer
};

struct ModelShapes {
  const char* name;
  int layers;
  std::vector<MatrixShape> layer;
};

inline std::vector<ModelShapes> PublicModels() {
  return {
      // openai-community/gpt2; qkv is one matrix there.
      {"GPT-2 124M", 12, {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}}},
      // Qwen/Qwen2.5-0.5B
      {"Qwen2.5-0.5B", 24, {{896, 896, 2}, {128, 896, 2}, {4864, 896, 2}, {896, 4864}}},
      // Qwen/Qwen2.5-7B
      {"Qwen2.5-7B", 28, {{3584, 3584, 2}, {512, 3584, 2}, {18944, 3584, 2}, {3584, 18944}}},
      // meta-llama/Llama-3.1-8B, -70B and -405B
      {"Llama-3.1-8B", 32, {{4096, 4096, 2}, {1024, 4096, 2}, {14336, 4096, 2}, {4096, 14336}}},
      {"Llama-3.1-70B", 80, {{8192, 8192, 2}, {1024, 8192, 2}, {28672, 8192, 2}, {8192, 28672}}},
      {"Llama-3.1-405B",
       126,
       {{16384, 16384, 2}, {1024, 16384, 2}, {53248, 16384, 2}, {16384, 53248}}},
      // Qwen/Qwen3-30B-A3B: 128 experts and their router.
      {"Qwen3-30B-A3B",
       48,
       {{4096, 2048},
        {512, 2048, 2},
        {2048, 4096},
        {128, 2048},
        {768, 2048, 256},
        {2048, 768, 128}}},
      // A vision-language-action model: the towers of Qwen/Qwen2.5-VL-3B-Instruct (36 language and
      // 32 vision layers, qkv and gate_up fused, vision padded to 3456) and an action expert of
      // width 1024 with as many layers.
      {"VLA 3B",
       1,
       {{2560, 2048, 36},
        {2048, 2048, 36},
        {22016, 2048, 36},
        {2048, 11008, 36},
        {2560, 1024, 36},
        {1024, 1024, 36},
        {4096, 1024, 36},
        {1024, 2048, 36},
        {3840, 1280, 32},
        {1280, 1280, 32},
        {6912, 1280, 32},
        {1280, 3456, 32},
        {5120, 5120}}},
  };
}

// Price of every matrix under Muon with 5 iterations, in the order of the layers.
inline std::vector<double> MatrixSeconds(const ModelShapes& model) {
  v1::Group muon;
  muon.mutable_muon()->set_iterations(5);
  std::vector<double> seconds;
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const MatrixShape& shape : model.layer) {
      const double price = UnitSeconds(muon, {{shape.rows, shape.cols}});
      seconds.insert(seconds.end(), static_cast<size_t>(shape.copies), price);
    }
  }
  return seconds;
}

}  // namespace dmuon::plan
