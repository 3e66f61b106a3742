// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A small language for jobs and shardings in tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/plan/timings.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/validate.h"

namespace dmuon::plan {

using Shards = std::vector<std::vector<wire::ShardBoxes>>;  // by rank, then by tensor

// Group 0 is Muon, group 1 AdamW.
inline constexpr uint32_t kMuonGroup = 0;
inline constexpr uint32_t kAdamwGroup = 1;

class JobBuilder {
 public:
  explicit JobBuilder(uint32_t world_size = 1) {
    job_.set_job_id("job");
    job_.set_world_size(world_size);
    job_.set_missing_gradient(v1::MISSING_GRADIENT_ERROR);
    v1::Group& muon = *job_.add_groups();
    muon.set_name("muon");
    muon.mutable_muon()->set_variant(v1::VARIANT_MUON);
    v1::Group& adamw = *job_.add_groups();
    adamw.set_name("adamw");
    adamw.mutable_adamw()->set_eps(1e-8);
  }

  JobBuilder& Matrix(const std::string& name, int64_t rows, int64_t cols,
                     const std::vector<int64_t>& row_blocks = {}, int64_t row_repeats = 1) {
    return Stack(name, {rows, cols}, v1::VIEW_UNSPECIFIED, row_blocks, row_repeats);
  }
  JobBuilder& Stack(const std::string& name, const std::vector<int64_t>& shape, v1::View view,
                    const std::vector<int64_t>& row_blocks = {}, int64_t row_repeats = 1) {
    v1::Tensor& tensor = Add(name, shape, kMuonGroup);
    tensor.set_view(view);
    tensor.mutable_row_blocks()->Assign(row_blocks.begin(), row_blocks.end());
    tensor.set_row_repeats(row_repeats);
    return *this;
  }
  JobBuilder& Elementwise(const std::string& name, const std::vector<int64_t>& shape) {
    Add(name, shape, kAdamwGroup);
    return *this;
  }

  [[nodiscard]] v1::JobSpec Build() const { return job_; }

 private:
  v1::Tensor& Add(const std::string& name, const std::vector<int64_t>& shape, uint32_t group) {
    v1::Tensor& tensor = *job_.add_tensors();
    tensor.set_name(name);
    tensor.mutable_shape()->Assign(shape.begin(), shape.end());
    tensor.set_param_dtype(v1::DTYPE_FLOAT32);
    tensor.set_grad_dtype(v1::DTYPE_FLOAT32);
    tensor.set_group(group);
    return tensor;
  }

  v1::JobSpec job_;
};

inline wire::Box WholeTensor(const v1::Tensor& tensor) {
  return wire::WholeBox({tensor.shape().data(), static_cast<size_t>(tensor.shape_size())});
}

// Rows [rank*chunk, ...) with chunk = ceil(rows / ranks), as FSDP2 cuts; tails may be empty.
inline wire::Box RowsOf(wire::Box whole, int64_t rank, int64_t ranks) {
  const int64_t rows = whole.length[0];
  const int64_t chunk = (rows + ranks - 1) / ranks;
  const int64_t begin = std::min(rows, rank * chunk);
  whole.offset[0] = begin;
  whole.length[0] = std::min(rows, begin + chunk) - begin;
  return whole;
}

// Every rank holds its rows, already reduced: ZeRO-2/3.
inline Shards FullyShard(const v1::JobSpec& job) {
  Shards shards(job.world_size());
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    for (const v1::Tensor& tensor : job.tensors()) {
      const wire::Box rows =
          RowsOf(WholeTensor(tensor), static_cast<int64_t>(rank), job.world_size());
      shards[rank].push_back({rows, rows, true});
    }
  }
  return shards;
}

// Every rank holds everything: DDP.
inline Shards Replicate(const v1::JobSpec& job) {
  Shards shards(job.world_size());
  for (auto& of_rank : shards) {
    for (const v1::Tensor& tensor : job.tensors()) {
      of_rank.push_back({WholeTensor(tensor), WholeTensor(tensor), true});
    }
  }
  return shards;
}

// As a node measures it: what the job needs, in the order of ShapeClasses, each method in the same time.
inline std::vector<v1::UnitTime> TimesOf(const v1::JobSpec& job, double seconds = 1.0) {
  std::vector<v1::UnitTime> times;
  for (const ShapeClass& units : ShapeClasses(job)) {
    for (const kernels::Method& method : units.methods) {
      times.push_back(TimeOf(units, method));
      times.back().set_seconds(seconds);
    }
  }
  return times;
}

}  // namespace dmuon::plan
