// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/routes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "daemon/plan/box_set.h"
#include "wire/box.h"
#include "wire/validate.h"

namespace dmuon::plan {
namespace {

using wire::Box;

// Of one distinct piece of a unit: how many workers of each node have it.
using CopiesByNode = std::map<uint32_t, uint32_t>;

bool Contains(const Box& outer, const Box& inner) { return Intersect(outer, inner) == inner; }

// A unit, and who has and wants what of it.
class UnitPieces {
 public:
  UnitPieces(ShardsByRank shards, std::span<const uint32_t> rank_nodes, uint32_t tensor,
             const Box& box)
      : gradients_(Distinct(shards, rank_nodes, tensor, box, &wire::ShardBoxes::grad)),
        parameters_(Distinct(shards, rank_nodes, tensor, box, &wire::ShardBoxes::param)) {
    // All workers that have a part say the same: coverage is proved.
    for (const std::vector<wire::ShardBoxes>& shard : shards) {
      if (!shard[tensor].grad.empty()) reduced_ = shard[tensor].reduced;
    }
    for (const auto& [piece, copies] : parameters_) {
      for (const auto& [node, count] : copies) wanted_[node].push_back(piece);
    }
    for (auto& [node, pieces] : wanted_) DropInner(pieces);
  }

  [[nodiscard]] const std::map<Box, CopiesByNode>& gradients() const { return gradients_; }
  [[nodiscard]] const std::map<Box, CopiesByNode>& parameters() const { return parameters_; }
  // By node; no piece lies inside another one.
  [[nodiscard]] const std::map<uint32_t, std::vector<Box>>& wanted() const { return wanted_; }
  [[nodiscard]] bool reduced() const { return reduced_; }

 private:
  static std::map<Box, CopiesByNode> Distinct(ShardsByRank shards,
                                              std::span<const uint32_t> rank_nodes,
                                              uint32_t tensor, const Box& unit,
                                              Box wire::ShardBoxes::* box_of) {
    std::map<Box, CopiesByNode> pieces;
    for (size_t rank = 0; rank < shards.size(); ++rank) {
      const Box& held = shards[rank][tensor].*box_of;
      if (held.empty() || !Overlap(held, unit)) continue;
      ++pieces[Intersect(held, unit)][rank_nodes[rank]];
    }
    return pieces;
  }

  static void DropInner(std::vector<Box>& pieces) {
    if (pieces.size() == 1) return;
    const std::vector<Box> all = pieces;
    std::erase_if(pieces, [&](const Box& piece) {
      return std::any_of(all.begin(), all.end(), [&](const Box& other) {
        return other != piece && Contains(other, piece);
      });
    });
  }

  std::map<Box, CopiesByNode> gradients_;
  std::map<Box, CopiesByNode> parameters_;
  std::map<uint32_t, std::vector<Box>> wanted_;
  bool reduced_ = true;
};

int64_t GradientBytes(const v1::Tensor& tensor, const Box& piece, uint32_t copies) {
  const size_t size = copies == 1 ? wire::SizeOf(tensor.grad_dtype()) : sizeof(float);
  return piece.elements() * static_cast<int64_t>(size);
}

class Router {
 public:
  explicit Router(const v1::Plan& plan) : routes_(static_cast<size_t>(plan.nodes_size())) {}

  void AddUnit(uint32_t unit, uint32_t owner, const UnitPieces& pieces) {
    unit_ = unit;
    owner_ = owner;
    for (const auto& [piece, copies] : pieces.gradients()) {
      if (pieces.reduced()) {
        AddOnce(&v1::Routes::mutable_gradients, piece, copies);
        continue;
      }
      for (const auto& [node, count] : copies) {
        if (node != owner) Add(&v1::Routes::mutable_gradients, piece, node, owner, count);
      }
    }
    for (const auto& [piece, copies] : pieces.parameters()) {
      AddOnce(&v1::Routes::mutable_loads, piece, copies);
    }
    for (const auto& [node, wanted] : pieces.wanted()) {
      for (const Box& piece : wanted) {
        if (node != owner) Add(&v1::Routes::mutable_publications, piece, owner, node, 1);
      }
    }
  }

  std::vector<v1::Routes> Take() && { return std::move(routes_); }

 private:
  using List = google::protobuf::RepeatedPtrField<v1::Transfer>* (v1::Routes::*)();

  void Add(List list, const Box& box, uint32_t from, uint32_t to, uint32_t copies) {
    v1::Transfer transfer;
    transfer.set_unit(unit_);
    *transfer.mutable_box() = wire::ToProto(box);
    transfer.set_from(from);
    transfer.set_to(to);
    transfer.set_copies(copies);
    *(routes_[to].*list)()->Add() = transfer;
    *(routes_[from].*list)()->Add() = std::move(transfer);
  }

  // One copy is enough. Of several nodes that have it, another one sends for each unit.
  void AddOnce(List list, const Box& piece, const CopiesByNode& copies) {
    if (copies.contains(owner_)) return;
    const auto source = std::next(copies.begin(), unit_ % copies.size());
    Add(list, piece, source->first, owner_, 1);
  }

  std::vector<v1::Routes> routes_;  // by node
  uint32_t unit_ = 0;
  uint32_t owner_ = 0;
};

}  // namespace

void AssignBuckets(v1::Plan& plan) {
  constexpr int64_t kBuckets = 16;
  const auto bytes_of = [](const v1::Unit& unit) {
    return 4 * wire::FromProto(unit.box()).elements();
  };
  int64_t total = 0;
  for (const v1::Unit& unit : plan.units()) total += bytes_of(unit);
  const int64_t limit = std::clamp(total / kBuckets, kMinBucketBytes, kMaxBucketBytes);
  uint32_t bucket = 0;
  int64_t bytes = 0;
  for (v1::Unit& unit : *plan.mutable_units()) {
    const int64_t unit_bytes = bytes_of(unit);
    if (bytes > 0 && bytes + unit_bytes > limit) {
      ++bucket;
      bytes = 0;
    }
    unit.set_bucket(bucket);
    bytes += unit_bytes;
  }
}

std::vector<v1::Routes> MakeRoutes(ShardsByRank shards, const v1::Plan& plan) {
  Router router(plan);
  const std::span<const uint32_t> rank_nodes(plan.rank_nodes().data(),
                                             static_cast<size_t>(plan.rank_nodes_size()));
  for (uint32_t i = 0; plan.nodes_size() > 1 && i < static_cast<uint32_t>(plan.units_size()); ++i) {
    const v1::Unit& unit = plan.units(static_cast<int>(i));
    router.AddUnit(i, unit.owners(0).node(),
                   UnitPieces(shards, rank_nodes, unit.tensor(), wire::FromProto(unit.box())));
  }
  return std::move(router).Take();
}

std::vector<int64_t> WireBytes(const v1::JobSpec& job, ShardsByRank shards,
                               std::span<const uint32_t> rank_nodes, const Unit& unit,
                               size_t nodes) {
  const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor));
  const auto param_size = static_cast<int64_t>(wire::SizeOf(tensor.param_dtype()));
  const UnitPieces pieces(shards, rank_nodes, unit.tensor, unit.box);
  std::vector<int64_t> bytes(nodes, 0);
  for (uint32_t owner = 0; owner < nodes; ++owner) {
    for (const auto& [piece, copies] : pieces.gradients()) {
      if (pieces.reduced()) {
        bytes[owner] += copies.contains(owner) ? 0 : GradientBytes(tensor, piece, 1);
        continue;
      }
      for (const auto& [node, count] : copies) {
        bytes[owner] += node == owner ? 0 : GradientBytes(tensor, piece, count);
      }
    }
    for (const auto& [node, wanted] : pieces.wanted()) {
      for (const Box& piece : wanted) {
        bytes[owner] += node == owner ? 0 : piece.elements() * param_size;
      }
    }
  }
  return bytes;
}

std::vector<v1::LinkLoad> LinkLoads(const v1::JobSpec& job, const v1::Plan& plan,
                                    std::span<const v1::Routes* const> routes) {
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, v1::LinkLoad> loads;  // from, to, bucket
  const auto load_of = [&](const v1::Transfer& transfer) -> v1::LinkLoad& {
    const uint32_t bucket = plan.units(static_cast<int>(transfer.unit())).bucket();
    v1::LinkLoad& load = loads[{transfer.from(), transfer.to(), bucket}];
    load.set_from(transfer.from());
    load.set_to(transfer.to());
    load.set_bucket(bucket);
    return load;
  };
  const auto tensor_of = [&](const v1::Transfer& transfer) -> const v1::Tensor& {
    return job.tensors(static_cast<int>(plan.units(static_cast<int>(transfer.unit())).tensor()));
  };
  for (uint32_t node = 0; node < routes.size(); ++node) {
    for (const v1::Transfer& t : routes[node]->gradients()) {
      if (t.from() != node) continue;  // each transfer is in the routes of both ends
      v1::LinkLoad& load = load_of(t);
      const int64_t bytes = GradientBytes(tensor_of(t), wire::FromProto(t.box()), t.copies());
      load.set_gradient_bytes(load.gradient_bytes() + static_cast<uint64_t>(bytes));
    }
    for (const v1::Transfer& t : routes[node]->publications()) {
      if (t.from() != node) continue;
      v1::LinkLoad& load = load_of(t);
      const size_t size = wire::SizeOf(tensor_of(t).param_dtype());
      const auto elements = static_cast<uint64_t>(wire::FromProto(t.box()).elements());
      load.set_parameter_bytes(load.parameter_bytes() + elements * size);
    }
  }
  std::vector<v1::LinkLoad> sorted;
  for (auto& [key, load] : loads) sorted.push_back(std::move(load));
  return sorted;
}

}  // namespace dmuon::plan
