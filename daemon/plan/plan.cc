// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/plan/plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/sha256.h"
#include "daemon/plan/cost.h"
#include "daemon/plan/methods.h"
#include "daemon/plan/optimizers.h"
#include "daemon/plan/ownership.h"
#include "daemon/plan/routes.h"
#include "daemon/plan/units.h"
#include "wire/error.h"

namespace dmuon::plan {
namespace {

std::string Serialize(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream sink(&bytes);
  google::protobuf::io::CodedOutputStream coded(&sink);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

// `canonical` has no generation, digest or reason.
std::string HashOf(const v1::JobSpec& job, const v1::Plan& canonical) {
  const std::array parts = {Serialize(job), Serialize(canonical)};
  return Sha256Hex(parts);
}

uint32_t OfferedSlots(const NodeSlots& node) { return node.drained ? 0 : node.slots; }

// That may own units.
std::vector<v1::Slot> SlotsOf(std::span<const NodeSlots> nodes) {
  std::vector<v1::Slot> slots;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (uint32_t s = 0; s < OfferedSlots(nodes[n]); ++s) {
      v1::Slot& slot = slots.emplace_back();
      slot.set_node(static_cast<uint32_t>(n));
      slot.set_slot(s);
    }
  }
  return slots;
}

const v1::Group& GroupOf(const v1::JobSpec& job, const Unit& unit) {
  return job.groups(static_cast<int>(job.tensors(static_cast<int>(unit.tensor)).group()));
}

std::vector<kernels::MatrixShape> ShapesOf(const v1::JobSpec& job, const Unit& unit) {
  return MatricesOf(job.tensors(static_cast<int>(unit.tensor)), unit.box);
}

// What the unit takes on its owner. With replication a node keeps copies of about as much state as it has.
int64_t BytesOf(const v1::JobSpec& job, const Unit& unit) {
  const v1::Group& group = GroupOf(job, unit);
  const std::vector<kernels::MatrixShape> shapes = ShapesOf(job, unit);
  return UnitBytes(group, shapes) + (IsReplicated(job) ? kCopies * StateBytes(group, shapes) : 0);
}

// What a unit costs, and how each of its matrices is computed.
struct Price {
  double seconds = 0.0;
  std::vector<kernels::Method> methods;
};

Price PriceByFormula(const v1::Group& group, const std::vector<kernels::MatrixShape>& matrices) {
  Price price{UnitSeconds(group, matrices), {}};
  if (!group.has_muon()) return price;
  for (const kernels::MatrixShape& matrix : matrices) price.methods.push_back(ChooseMethod(group, matrix));
  return price;
}

// Prices of a job's units by measurement. Units are many and shapes few, so each is looked up once.
class MeasuredPrices {
 public:
  MeasuredPrices(const v1::JobSpec& job, const Timings& timings) : job_(job), timings_(timings) {}

  // nullopt where something was not measured.
  std::optional<Price> Of(const Unit& unit) {
    const uint32_t group = job_.tensors(static_cast<int>(unit.tensor)).group();
    Price price{SlotSpeed().seconds_per_unit, {}};
    for (const kernels::MatrixShape& matrix : ShapesOf(job_, unit)) {
      const std::optional<Timings::Choice>& fastest = Fastest(group, matrix);
      if (!fastest.has_value()) return std::nullopt;
      price.seconds += fastest->seconds;
      if (GroupOf(job_, unit).has_muon()) price.methods.push_back(fastest->method);
    }
    return price;
  }

 private:
  const std::optional<Timings::Choice>& Fastest(uint32_t group, const kernels::MatrixShape& matrix) {
    const auto [known, added] = known_.try_emplace({group, matrix.rows, matrix.cols});
    if (added) known->second = timings_.Fastest(job_.groups(static_cast<int>(group)), matrix);
    return known->second;
  }

  const v1::JobSpec& job_;
  const Timings& timings_;
  std::map<std::tuple<uint32_t, int64_t, int64_t>, std::optional<Timings::Choice>> known_;  // by group and shape
};

struct Prices {
  bool measured = true;
  std::vector<Price> units;
};

// Measured prices and those by formula are not comparable: all of the one kind or all of the other.
Prices PricesOf(const v1::JobSpec& job, std::span<const Unit> units, const Timings& timings) {
  Prices prices;
  MeasuredPrices measured(job, timings);
  for (const Unit& unit : units) {
    std::optional<Price> price = measured.Of(unit);
    prices.measured = price.has_value();
    if (!prices.measured) break;
    prices.units.push_back(*std::move(price));
  }
  if (prices.measured) return prices;
  prices.units.clear();
  for (const Unit& unit : units) prices.units.push_back(PriceByFormula(GroupOf(job, unit), ShapesOf(job, unit)));
  return prices;
}

void AddUnits(std::span<const Unit> units, std::span<const Price> prices,
              std::span<const v1::Slot> slots, const Assignment& assignment, v1::Plan& plan) {
  plan.mutable_units()->Reserve(static_cast<int>(units.size()));
  for (size_t i = 0; i < units.size(); ++i) {
    v1::Unit& unit = *plan.add_units();
    unit.set_tensor(units[i].tensor);
    *unit.mutable_box() = wire::ToProto(units[i].box);
    *unit.add_owners() = slots[assignment.slot_of[i]];
    unit.set_cost_seconds(prices[i].seconds);
    for (const kernels::Method& method : prices[i].methods) *unit.add_methods() = ToProto(method);
  }
}

absl::Status PlaceRanks(std::span<const NodeSlots> nodes, uint32_t world_size, v1::Plan& plan) {
  constexpr uint32_t kNowhere = UINT32_MAX;
  std::vector<uint32_t> rank_nodes(world_size, nodes.size() == 1 ? 0 : kNowhere);
  for (uint32_t n = 0; n < nodes.size(); ++n) {
    for (const uint32_t rank : nodes[n].ranks) {
      if (rank < world_size) rank_nodes[rank] = n;
    }
  }
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    if (rank_nodes[rank] == kNowhere) {
      return wire::InvalidField(absl::StrCat("rank ", rank, " of job '", plan.job_id(),
                                             "' is attached to none of ", nodes.size(), " nodes"));
    }
  }
  plan.mutable_rank_nodes()->Assign(rank_nodes.begin(), rank_nodes.end());
  return absl::OkStatus();
}

// A ring: each node keeps copies for the one before it. One that owns nothing and has no workers may be gone soon, and has
// itself, which is nobody.
absl::Status ChooseBuddies(const v1::JobSpec& job, v1::Plan& plan) {
  if (!IsReplicated(job)) return absl::OkStatus();
  std::vector<uint32_t> ring;
  for (uint32_t node = 0; node < static_cast<uint32_t>(plan.nodes_size()); ++node) {
    const bool drained = std::find(plan.drained().begin(), plan.drained().end(), node) != plan.drained().end();
    if (!drained || HasWorkers(plan, node)) ring.push_back(node);
    plan.add_buddies(node);
  }
  const size_t nodes = ring.size();
  if (nodes < 2) {
    return wire::InvalidField(absl::StrCat("job '", job.job_id(), "' asks for replication on ", nodes, " node; a copy needs another: "
                                           "workers on 2 nodes, or one that owns for all (dmuond --owns all)"));
  }
  for (size_t i = 0; i < nodes; ++i) plan.set_buddies(static_cast<int>(ring[i]), ring[(i + 1) % nodes]);
  return absl::OkStatus();
}

absl::Status CheckBuddies(const v1::JobSpec& job, const v1::Plan& plan) {
  const int nodes = plan.nodes_size();
  bool good = plan.buddies_size() == (IsReplicated(job) ? nodes : 0);
  std::set<uint32_t> buddies;
  for (int node = 0; good && node < nodes && IsReplicated(job); ++node) {
    const uint32_t buddy = plan.buddies(node);
    const auto place = static_cast<size_t>(node);
    const bool may_be_itself = OwnsNothing(plan, place) && !HasWorkers(plan, place);
    good = buddy < static_cast<uint32_t>(nodes) && (buddy != place || may_be_itself) && buddies.insert(buddy).second;
  }
  if (good) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat("plan of job '", job.job_id(), "': buddies are ", absl::StrJoin(plan.buddies(), ", "),
                                         "; each of ", nodes, " nodes needs one of its own, and only with replication"));
}

absl::Status CheckTransfer(const v1::JobSpec& job, const v1::Plan& plan, const v1::Transfer& t,
                           size_t index) {
  const std::string what = absl::StrCat("transfer ", index);
  const auto nodes = static_cast<uint32_t>(plan.nodes_size());
  if (t.unit() >= static_cast<uint32_t>(plan.units_size()) || t.from() >= nodes ||
      t.to() >= nodes || t.from() == t.to()) {
    return wire::InvalidField(absl::StrCat(what, ": unit ", t.unit(), " from node ", t.from(),
                                           " to ", t.to(), "; there are ", plan.units_size(),
                                           " units and ", nodes, " nodes"));
  }
  const v1::Unit& unit = plan.units(static_cast<int>(t.unit()));
  const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
  const std::span<const int64_t> shape(tensor.shape().data(),
                                       static_cast<size_t>(tensor.shape_size()));
  DMUON_ASSIGN_OR_RETURN(const wire::Box box, wire::ParseBox(t.box(), shape, what));
  if (box.empty() || wire::Intersect(box, wire::FromProto(unit.box())) != box) {
    return wire::InvalidField(absl::StrCat(what, ": box ", box.ToString(), " of tensor '",
                                           tensor.name(), "' is not a piece of its unit"));
  }
  return absl::OkStatus();
}

absl::Status CheckUnit(const v1::JobSpec& job, const v1::Plan& plan, size_t index) {
  const v1::Unit& unit = plan.units(static_cast<int>(index));
  if (unit.tensor() >= static_cast<uint32_t>(job.tensors_size()) || unit.owners_size() != 1 ||
      unit.owners(0).node() >= static_cast<uint32_t>(plan.nodes_size())) {
    return wire::InvalidField(absl::StrCat("unit ", index, " of tensor ", unit.tensor(), " has ",
                                           unit.owners_size(), " owners; there are ",
                                           job.tensors_size(), " tensors and ", plan.nodes_size(),
                                           " nodes, and a unit has one owner"));
  }
  const v1::Tensor& tensor = job.tensors(static_cast<int>(unit.tensor()));
  const std::span<const int64_t> shape(tensor.shape().data(),
                                       static_cast<size_t>(tensor.shape_size()));
  const std::string what = absl::StrCat("unit ", index, " of tensor '", tensor.name(), "'");
  DMUON_ASSIGN_OR_RETURN(const wire::Box box, wire::ParseBox(unit.box(), shape, what));
  if (!job.groups(static_cast<int>(tensor.group())).has_muon()) return absl::OkStatus();
  const std::vector<kernels::MatrixShape> matrices = MatricesOf(tensor, box);
  int64_t elements = 0;
  for (const kernels::MatrixShape& matrix : matrices) elements += matrix.rows * matrix.cols;
  if (elements == box.elements() && matrices.size() == static_cast<size_t>(unit.methods_size())) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat(what, " has ", unit.methods_size(), " methods and box ", box.ToString(), "; its ",
                                         matrices.size(), " matrices have ", elements, " elements"));
}

// An even part of what a node has left beside its workers' arenas, on the node where that is least; 0 for no
// cap.
int64_t SlotBytes(const v1::JobSpec& job, ShardsByRank shards, std::span<const NodeSlots> nodes) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 62;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const NodeSlots& node : nodes) {
    if (OfferedSlots(node) == 0) continue;
    if (node.memory_bytes == 0) return 0;
    auto left = static_cast<int64_t>(std::min(node.memory_bytes, kMostBytes));
    for (const uint32_t rank : node.ranks) {
      if (rank >= shards.size()) continue;  // PlaceRanks says so
      for (size_t t = 0; t < shards[rank].size(); ++t) {
        const v1::Tensor& tensor = job.tensors(static_cast<int>(t));
        left -= shards[rank][t].grad.elements() * static_cast<int64_t>(wire::SizeOf(tensor.grad_dtype()));
        left -= shards[rank][t].param.elements() * static_cast<int64_t>(wire::SizeOf(tensor.param_dtype()));
      }
    }
    least = std::min(least, left / node.slots);
  }
  return std::max<int64_t>(least, 1);
}

// Slots of a node share its memory: where no plan keeps all to their parts, the nodes judge by what they have.
absl::StatusOr<Assignment> AssignWithinMemory(Problem problem) {
  absl::StatusOr<Assignment> assignment = Assign(problem);
  if (problem.slot_bytes == 0 || wire::ReasonOf(assignment.status()) != v1::ERROR_REASON_LIMIT) return assignment;
  problem.slot_bytes = 0;
  return Assign(problem);
}

absl::Status CheckSize(const v1::Plan& plan, size_t max_bytes) {
  const size_t bytes = plan.ByteSizeLong();
  if (bytes <= max_bytes) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                     absl::StrCat("the plan of job '", plan.job_id(), "' has ", plan.units_size(),
                                  " units and ", bytes, " bytes; at most ", max_bytes));
}

// All of a plan but who comes before it, and the number and reason of its own.
absl::StatusOr<v1::Plan> Compose(const v1::JobSpec& job, ShardsByRank shards, std::span<const NodeSlots> nodes,
                                 std::span<const Unit> units, std::span<const Price> prices,
                                 std::span<const v1::Slot> slots, std::span<const size_t> previous) {
  if (slots.empty()) {
    std::vector<std::string> drained;
    for (const NodeSlots& node : nodes) drained.push_back(node.node_id);
    return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                       absl::StrCat("cannot place ", units.size(), " units of job '", job.job_id(), "' on 0 slots; need at least 1",
                                    nodes.empty() ? "" : "; drained: ", absl::StrJoin(drained, ", ")));
  }
  std::vector<double> seconds;
  for (const Price& price : prices) seconds.push_back(price.seconds);
  std::vector<int64_t> bytes;
  for (const Unit& unit : units) bytes.push_back(BytesOf(job, unit));
  v1::Plan plan;
  plan.set_job_id(job.job_id());
  std::vector<uint32_t> offered;
  for (size_t n = 0; n < nodes.size(); ++n) {
    plan.add_nodes(nodes[n].node_id);
    plan.add_slots(nodes[n].slots);
    offered.push_back(OfferedSlots(nodes[n]));
    if (nodes[n].drained) plan.add_drained(static_cast<uint32_t>(n));
  }
  DMUON_RETURN_IF_ERROR(PlaceRanks(nodes, job.world_size(), plan));
  DMUON_RETURN_IF_ERROR(ChooseBuddies(job, plan));
  Problem problem{.costs = seconds,
                  .slots_per_node = offered,
                  .bytes = bytes,
                  .slot_bytes = SlotBytes(job, shards, nodes),
                  .previous = previous};
  std::vector<std::vector<int64_t>> wire_bytes;  // by unit and node
  if (nodes.size() > 1) {
    const std::span<const uint32_t> rank_nodes(plan.rank_nodes().data(), job.world_size());
    for (const Unit& unit : units) {
      wire_bytes.push_back(WireBytes(job, shards, rank_nodes, unit, nodes.size()));
    }
    problem.wire_bytes = [&](size_t unit, size_t node) { return wire_bytes[unit][node]; };
    problem.seconds_per_wire_byte = kSecondsPerWireByte;
  }
  DMUON_ASSIGN_OR_RETURN(const Assignment assignment, AssignWithinMemory(problem));
  AddUnits(units, prices, slots, assignment, plan);
  AssignBuckets(plan);
  plan.set_makespan_seconds(assignment.makespan);
  plan.set_lower_bound_seconds(assignment.lower_bound);
  // Before the fields that the digest leaves out: a copy of a large plan would be dear.
  plan.set_digest(HashOf(job, plan));
  return plan;
}

// Of each unit, its slot's place among those that may own units now, or kNoSlot.
std::vector<size_t> PreviousSlots(const v1::Plan& former, std::span<const v1::Slot> slots) {
  std::map<std::pair<uint32_t, uint32_t>, size_t> place_of;
  for (size_t i = 0; i < slots.size(); ++i) place_of[{slots[i].node(), slots[i].slot()}] = i;
  std::vector<size_t> previous;
  for (const v1::Unit& unit : former.units()) {
    const auto place = place_of.find({unit.owners(0).node(), unit.owners(0).slot()});
    previous.push_back(place == place_of.end() ? kNoSlot : place->second);
  }
  return previous;
}

}  // namespace

bool IsReplicated(const v1::JobSpec& job) {
  return job.replication() == v1::REPLICATION_ASYNC || job.replication() == v1::REPLICATION_SYNC;
}

std::string Digest(const v1::JobSpec& job, const v1::Plan& plan) {
  v1::Plan canonical = plan;
  canonical.clear_generation();
  canonical.clear_digest();
  canonical.clear_reason();
  canonical.clear_former_generation();
  return HashOf(job, canonical);
}

absl::StatusOr<v1::Plan> MakePlan(const v1::JobSpec& job, ShardsByRank shards,
                                  std::span<const NodeSlots> nodes, uint64_t generation,
                                  absl::string_view reason, const Timings& timings, size_t max_bytes) {
  DMUON_RETURN_IF_ERROR(ProveCoverage(job, shards));
  const std::vector<Unit> units = MakeUnits(job, shards);
  const Prices prices = PricesOf(job, units, timings);
  DMUON_ASSIGN_OR_RETURN(v1::Plan plan, Compose(job, shards, nodes, units, prices.units, SlotsOf(nodes), {}));
  plan.set_generation(generation);
  plan.set_reason(absl::StrCat(reason, prices.measured ? ", prices as measured" : ""));
  DMUON_RETURN_IF_ERROR(CheckSize(plan, max_bytes));
  return plan;
}

absl::StatusOr<v1::Plan> MakeSuccessor(const v1::JobSpec& job, ShardsByRank shards, const v1::Plan& former,
                                       std::span<const NodeSlots> nodes, uint64_t generation, absl::string_view reason,
                                       size_t max_bytes) {
  std::vector<Unit> units;
  std::vector<Price> prices;
  for (const v1::Unit& unit : former.units()) {
    units.push_back({unit.tensor(), wire::FromProto(unit.box())});
    Price& price = prices.emplace_back(Price{unit.cost_seconds(), {}});
    for (const v1::Method& method : unit.methods()) price.methods.push_back(FromProto(method));
  }
  const std::vector<v1::Slot> slots = SlotsOf(nodes);
  DMUON_ASSIGN_OR_RETURN(v1::Plan plan, Compose(job, shards, nodes, units, prices, slots, PreviousSlots(former, slots)));
  plan.set_generation(generation);
  plan.set_former_generation(former.generation());
  plan.set_reason(std::string(reason));
  DMUON_RETURN_IF_ERROR(CheckSize(plan, max_bytes));
  return plan;
}

absl::Status ValidatePlan(const v1::JobSpec& job, const v1::Plan& plan, const v1::Routes& routes) {
  if (plan.rank_nodes_size() != static_cast<int>(job.world_size())) {
    return wire::InvalidField(absl::StrCat("plan of job '", job.job_id(), "' places ",
                                           plan.rank_nodes_size(), " ranks of ",
                                           job.world_size()));
  }
  DMUON_RETURN_IF_ERROR(CheckBuddies(job, plan));
  for (size_t i = 0; i < static_cast<size_t>(plan.units_size()); ++i) {
    DMUON_RETURN_IF_ERROR(CheckUnit(job, plan, i));
  }
  for (const auto* list : {&routes.gradients(), &routes.loads(), &routes.publications()}) {
    for (size_t i = 0; i < static_cast<size_t>(list->size()); ++i) {
      DMUON_RETURN_IF_ERROR(CheckTransfer(job, plan, list->at(static_cast<int>(i)), i));
    }
  }
  return absl::OkStatus();
}

}  // namespace dmuon::plan
