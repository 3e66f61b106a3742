// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/routes.h"

#include <algorithm>
#include <map>

#include "wire/box.h"
#include "wire/validate.h"

namespace dmuon::plan {
namespace {

using wire::Box;

// Of one distinct piece of a unit: how many workers of each node have it.
using CopiesByNode = std::map<uint32_t, uint32_t>;

bool Contains(const Box& outer, const Box& inner) { return Intersect(outer, inner) == inner; }

class Router {
 public:
  Router(const v1::JobSpec& job, ShardsByRank shards, const v1::Plan& plan)
      : job_(job), shards_(shards), plan_(plan), routes_(static_cast<size_t>(plan.nodes_size())) {}

  std::vector<v1::Routes> Run() && {
    if (plan_.nodes_size() < 2) return std::move(routes_);
    for (int i = 0; i < plan_.units_size(); ++i) {
      unit_ = static_cast<uint32_t>(i);
      owner_ = plan_.units(i).owners(0).node();
      box_ = wire::FromProto(plan_.units(i).box());
      tensor_ = plan_.units(i).tensor();
      AddGradients();
      AddLoads();
      AddPublications();
    }
    return std::move(routes_);
  }

 private:
  using List = google::protobuf::RepeatedPtrField<v1::Transfer>* (v1::Routes::*)();

  // The distinct pieces of the unit that workers have, by `box_of` a worker's shard.
  std::map<Box, CopiesByNode> Pieces(Box wire::ShardBoxes::* box_of) const {
    std::map<Box, CopiesByNode> pieces;
    for (size_t rank = 0; rank < shards_.size(); ++rank) {
      const Box piece = Intersect(shards_[rank][tensor_].*box_of, box_);
      if (!piece.empty()) ++pieces[piece][plan_.rank_nodes(static_cast<int>(rank))];
    }
    return pieces;
  }

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

  void AddGradients() {
    for (const auto& [piece, copies] : Pieces(&wire::ShardBoxes::grad)) {
      if (ReducedIn(piece)) {
        AddOnce(&v1::Routes::mutable_gradients, piece, copies);
        continue;
      }
      for (const auto& [node, count] : copies) {
        if (node != owner_) Add(&v1::Routes::mutable_gradients, piece, node, owner_, count);
      }
    }
  }

  void AddLoads() {
    for (const auto& [piece, copies] : Pieces(&wire::ShardBoxes::param)) {
      AddOnce(&v1::Routes::mutable_loads, piece, copies);
    }
  }

  // One copy is enough. Of several nodes that have it, another one sends for each unit.
  void AddOnce(List list, const Box& piece, const CopiesByNode& copies) {
    if (copies.contains(owner_)) return;
    const auto source = std::next(copies.begin(), unit_ % copies.size());
    Add(list, piece, source->first, owner_, 1);
  }

  void AddPublications() {
    std::map<uint32_t, std::vector<Box>> wanted;  // by node
    for (const auto& [piece, copies] : Pieces(&wire::ShardBoxes::param)) {
      for (const auto& [node, count] : copies) {
        if (node != owner_) wanted[node].push_back(piece);
      }
    }
    for (const auto& [node, pieces] : wanted) {
      for (const Box& piece : pieces) {
        const bool inside = std::any_of(pieces.begin(), pieces.end(), [&](const Box& other) {
          return other != piece && Contains(other, piece);
        });
        if (!inside) Add(&v1::Routes::mutable_publications, piece, owner_, node, 1);
      }
    }
  }

  // All workers that have a part of the piece say the same: coverage is proved.
  bool ReducedIn(const Box& piece) const {
    for (const std::vector<wire::ShardBoxes>& shards : shards_) {
      if (!Intersect(shards[tensor_].grad, piece).empty()) return shards[tensor_].reduced;
    }
    return true;
  }

  const v1::JobSpec& job_;
  const ShardsByRank shards_;
  const v1::Plan& plan_;
  std::vector<v1::Routes> routes_;  // by node
  // Of the unit in work.
  uint32_t unit_ = 0;
  uint32_t owner_ = 0;
  uint32_t tensor_ = 0;
  Box box_;
};

}  // namespace

void AssignBuckets(v1::Plan& plan) {
  uint32_t bucket = 0;
  int64_t bytes = 0;
  for (v1::Unit& unit : *plan.mutable_units()) {
    const int64_t unit_bytes = 4 * wire::FromProto(unit.box()).elements();
    if (bytes > 0 && bytes + unit_bytes > kBucketBytes) {
      ++bucket;
      bytes = 0;
    }
    unit.set_bucket(bucket);
    bytes += unit_bytes;
  }
}

std::vector<v1::Routes> MakeRoutes(const v1::JobSpec& job, ShardsByRank shards,
                                   const v1::Plan& plan) {
  return Router(job, shards, plan).Run();
}

size_t GradientElementBytes(const v1::Tensor& tensor, const v1::Transfer& gradient) {
  return gradient.copies() == 1 ? wire::SizeOf(tensor.grad_dtype()) : sizeof(float);
}

}  // namespace dmuon::plan
