// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/node/gradient_sources.h"

#include <algorithm>
#include <map>
#include <utility>

#include "wire/validate.h"

namespace dmuon::node {

kernels::DType ToKernel(v1::DType dtype) {
  return dtype == v1::DTYPE_BFLOAT16 ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

std::vector<GradientSource> SourcesOf(uint32_t tensor, const wire::Box& unit, uint32_t self,
                                      const WorkerBoxes& workers,
                                      std::span<const Arrival> arrivals) {
  std::map<wire::Box, GradientSource> sources;
  for (const uint32_t rank : workers.ranks()) {
    const wire::ShardBoxes& shard = workers.shard(rank, tensor);
    const wire::Box piece = wire::Intersect(shard.grad, unit);
    if (piece.empty()) continue;
    GradientSource& source = sources[piece];
    if (source.terms.empty()) source.terms.push_back({.node = self});
    source.terms[0].ranks.push_back(rank);
    source.copies = shard.reduced ? 1 : source.copies + 1;
  }
  for (const Arrival& arrival : arrivals) {
    GradientSource& source = sources[arrival.piece->box];
    source.terms.push_back({.node = arrival.message->peer,
                            .ranks = {},
                            .message = arrival.message,
                            .piece = arrival.piece});
    source.copies += arrival.piece->copies;
  }
  std::vector<GradientSource> sorted;
  for (auto& [box, source] : sources) {
    source.box = box;
    std::sort(source.terms.begin(), source.terms.end(),
              [](const GradientTerm& a, const GradientTerm& b) { return a.node < b.node; });
    sorted.push_back(std::move(source));
  }
  return sorted;
}

std::vector<uint32_t> RanksOf(uint32_t tensor, const wire::Box& unit, const wire::Box& piece,
                              const WorkerBoxes& workers) {
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : workers.ranks()) {
    if (wire::Intersect(workers.shard(rank, tensor).grad, unit) == piece) ranks.push_back(rank);
  }
  return ranks;
}

void SumRanks(uint32_t tensor, const wire::Box& piece, std::span<const uint32_t> ranks,
              const MissingRanks& missing, const WorkerBoxes& workers, kernels::Backend& backend,
              const Layout& layout, std::span<float> to) {
  const v1::DType dtype = workers.tensor(tensor).grad_dtype();
  const size_t size = wire::SizeOf(dtype);
  const auto stretch = [&](const wire::Run& run) {
    return to.subspan(static_cast<size_t>(run.a), static_cast<size_t>(run.count));
  };
  bool first = true;
  for (const uint32_t rank : ranks) {
    if (std::find(missing.begin(), missing.end(), rank) != missing.end()) continue;
    const wire::ShardBoxes& shard = workers.shard(rank, tensor);
    const std::byte* from = workers.arena(rank)->grad(tensor).data();
    // What a shard and the layout's box share is the piece.
    layout.ForEachRun(shard.grad, [&](const wire::Run& run) {
      const std::byte* at = from + static_cast<size_t>(run.b) * size;
      if (first) {
        backend.CastToFloat(ToKernel(dtype), at, stretch(run));
      } else {
        backend.AddToFloat(ToKernel(dtype), at, stretch(run));
      }
    });
    first = false;
    if (shard.reduced) return;  // every holder has the same values
  }
  if (!first) return;
  layout.ForEachRun(piece, [&](const wire::Run& run) {
    std::fill_n(stretch(run).begin(), run.count, 0.0F);
  });
}

}  // namespace dmuon::node
