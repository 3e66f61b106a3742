// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A job that is saved and restored, and where. Gradients are multiples of 1/64, so that bits can be compared whatever the
// job runs on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/checkpoint/files.h"
#include "daemon/checkpoint/store.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/node/exact_run.h"
#include "tests/daemon/node/test_node.h"

namespace dmuon::node {

// Fused and stacked matrices, rows that a rank has none of, and element-wise tensors that each worker owns a box of.
inline TestJob CheckpointModel(uint32_t world_size, v1::Variant variant = v1::VARIANT_MUON) {
  TestJob job("model", world_size);
  auto& muon = *job.spec.mutable_groups(0)->mutable_muon();
  muon.set_variant(variant);
  job.Add("up", {13, 6});
  job.Add("down", {6, 13});
  v1::Tensor* fused = job.Add("qkv", {12, 6});
  for (const int64_t rows : {2, 1, 1}) fused->add_row_blocks(rows);
  fused->set_row_repeats(3);
  job.Add("experts", {3, 5, 4})->set_view(v1::VIEW_EXPERTS);
  job.Add("narrow", {2, 9});
  job.Add("norm", {7}, 1);
  job.Add("embedding", {11, 5}, 1);
  return job;
}

struct Disk {
  explicit Disk(std::shared_ptr<checkpoint::Files> files = checkpoint::DiskFiles())
      : store(checkpoint::Store::Open(directory.path(), std::move(files)).value()) {}

  TempDir directory;
  std::unique_ptr<checkpoint::Store> store;

  [[nodiscard]] EngineOptions Options() const {
    EngineOptions options = TwoSlots();
    options.checkpoints = store.get();
    return options;
  }
  // The only file of the job that ends so.
  [[nodiscard]] std::filesystem::path File(const std::string& ending) const {
    for (const auto& entry : std::filesystem::directory_iterator(directory.File("model"))) {
      if (absl::EndsWith(entry.path().string(), ending)) return entry.path();
    }
    return {};
  }
};

// Of a file's values.
inline void FlipLastBit(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.get());
  stream.seekp(-1, std::ios::end);
  stream.put(static_cast<char>(last ^ 1));
}

inline void ExpectSteps(TestRun& run, uint64_t first, uint64_t last) {
  for (uint64_t step = first; step <= last; ++step) {
    const absl::Status status = StepExactly(run, step);
    EXPECT_TRUE(status.ok()) << "step " << step << ": " << status;
  }
}

// For a job that takes nothing of its workers.
inline float Zero(size_t, int64_t) { return 0.0F; }

// All of a job's parameters, put together from the first replica.
inline std::vector<float> WholeModel(TestRun& run, const TestJob& job, const Shards& shards) {
  std::vector<float> all;
  for (size_t t = 0; t < static_cast<size_t>(job.spec.tensors_size()); ++t) {
    const wire::Box whole = Whole(job.spec.tensors(static_cast<int>(t)));
    std::vector<float> values(static_cast<size_t>(whole.elements()));
    for (size_t rank = 0; rank < run.size(); ++rank) {
      const std::span<float> piece = run[rank].param(t);
      wire::ForEachRun(whole, shards[rank][t].param, [&](const wire::Run& run_of) {
        std::copy_n(piece.begin() + run_of.b, run_of.count, values.begin() + run_of.a);
      });
    }
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace dmuon::node
