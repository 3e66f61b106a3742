// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/ctl/report.h"
#include "daemon/ctl/table.h"

namespace dmuon::ctl {
namespace {

struct Load {
  uint64_t units = 0;
  double cost_seconds = 0;
};
using SlotId = std::pair<uint32_t, uint32_t>;  // node, slot

std::string ShapeText(const v1::Tensor& tensor) {
  return tensor.shape().empty() ? "scalar" : absl::StrJoin(tensor.shape(), "x");
}

// "0:128,0:64", end excluded; "all" for the whole tensor.
std::string BoxText(const v1::Box& box, const v1::Tensor& tensor) {
  std::string out;
  bool whole = box.length_size() == tensor.shape_size();
  for (int i = 0; i < box.offset_size() && i < box.length_size(); ++i) {
    whole = whole && box.offset(i) == 0 && box.length(i) == tensor.shape(i);
    absl::StrAppend(&out, i == 0 ? "" : ",", box.offset(i), ":", box.offset(i) + box.length(i));
  }
  return whole ? "all" : out;
}

std::string SlotText(const v1::Plan& plan, uint32_t node, uint32_t slot) {
  const bool known = node < static_cast<uint32_t>(plan.nodes_size());
  return absl::StrCat(known ? plan.nodes(static_cast<int>(node)) : absl::StrCat("node ", node),
                      "/", slot);
}

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f %%", 100 * part / whole) : "-";
}

// Load of every slot that the plan has, also of the idle ones.
std::map<SlotId, Load> Loads(const v1::Plan& plan) {
  std::map<SlotId, Load> loads;
  for (int node = 0; node < plan.slots_size(); ++node) {
    for (uint32_t slot = 0; slot < plan.slots(node); ++slot) {
      loads[{static_cast<uint32_t>(node), slot}] = {};
    }
  }
  for (const v1::Unit& unit : plan.units()) {
    for (const v1::Slot& owner : unit.owners()) {
      Load& load = loads[{owner.node(), owner.slot()}];
      ++load.units;
      load.cost_seconds += unit.cost_seconds() / unit.owners_size();
    }
  }
  return loads;
}

// How its matrices are orthogonalised: each way once.
std::string MethodsText(const v1::Unit& unit, const v1::Group& group) {
  if (group.muon().variant() == v1::VARIANT_NUMUON) return "top-k fp32";
  std::vector<std::string> texts;
  for (const v1::Method& method : unit.methods()) {
    std::string text = MethodText(method);
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(std::move(text));
  }
  return texts.empty() ? "-" : absl::StrJoin(texts, ", ");
}

std::string UnitsText(const v1::GetPlanResponse& response, double total) {
  const v1::Plan& plan = response.plan();
  Table table({{"tensor"},
               {"shape", Align::kRight},
               {"box"},
               {"owner"},
               {"matrices", Align::kRight},
               {"method"},
               {"cost", Align::kRight},
               {"share", Align::kRight}});
  static const v1::Tensor kUnknown;
  static const v1::Group kNoGroup;
  for (const v1::Unit& unit : plan.units()) {
    const bool known = unit.tensor() < static_cast<uint32_t>(response.job().tensors_size());
    const v1::Tensor& tensor =
        known ? response.job().tensors(static_cast<int>(unit.tensor())) : kUnknown;
    const bool grouped = known && tensor.group() < static_cast<uint32_t>(response.job().groups_size());
    const v1::Group& group = grouped ? response.job().groups(static_cast<int>(tensor.group())) : kNoGroup;
    std::string owners;
    for (const v1::Slot& owner : unit.owners()) {
      absl::StrAppend(&owners, owners.empty() ? "" : " ",
                      SlotText(plan, owner.node(), owner.slot()));
    }
    table.Add({known ? tensor.name() : absl::StrCat("tensor ", unit.tensor()), ShapeText(tensor),
               BoxText(unit.box(), tensor), owners, absl::StrCat(unit.methods_size()), MethodsText(unit, group),
               SecondsText(unit.cost_seconds()), Percent(unit.cost_seconds(), total)});
  }
  return table.Text();
}

std::string SlotsText(const v1::Plan& plan, const std::map<SlotId, Load>& loads, double total) {
  Table table({{"slot"}, {"units", Align::kRight}, {"cost", Align::kRight}, {"share", Align::kRight}});
  for (const auto& [id, load] : loads) {
    table.Add({SlotText(plan, id.first, id.second), absl::StrCat(load.units),
               SecondsText(load.cost_seconds), Percent(load.cost_seconds, total)});
  }
  return table.Text();
}

std::string LinksText(const v1::GetPlanResponse& response, bool explain) {
  if (response.links().empty()) return "";
  const v1::Plan& plan = response.plan();
  const auto name = [&](uint32_t node) {
    return node < static_cast<uint32_t>(plan.nodes_size()) ? plan.nodes(static_cast<int>(node))
                                                           : absl::StrCat("node ", node);
  };
  std::map<std::pair<uint32_t, uint32_t>, v1::LinkLoad> sums;
  Table table({{"link"},
               {"bucket", Align::kRight},
               {"gradients", Align::kRight},
               {"parameters", Align::kRight}});
  for (const v1::LinkLoad& load : response.links()) {
    v1::LinkLoad& sum = sums[{load.from(), load.to()}];
    sum.set_gradient_bytes(sum.gradient_bytes() + load.gradient_bytes());
    sum.set_parameter_bytes(sum.parameter_bytes() + load.parameter_bytes());
    if (!explain) continue;
    table.Add({absl::StrCat(name(load.from()), " -> ", name(load.to())),
               absl::StrCat(load.bucket()), BytesText(load.gradient_bytes()),
               BytesText(load.parameter_bytes())});
  }
  for (const auto& [link, sum] : sums) {
    table.Add({absl::StrCat(name(link.first), " -> ", name(link.second)), "all",
               BytesText(sum.gradient_bytes()), BytesText(sum.parameter_bytes())});
  }
  return table.Text() + "\n";
}

}  // namespace

std::string PlanText(const v1::GetPlanResponse& response, bool explain) {
  const v1::Plan& plan = response.plan();
  const std::map<SlotId, Load> loads = Loads(plan);
  double total = 0;
  for (const auto& [id, load] : loads) total += load.cost_seconds;
  const double mean = loads.empty() ? 0 : total / static_cast<double>(loads.size());
  return absl::StrCat(
      "job ", plan.job_id(), ", generation ", plan.generation(), ", digest ",
      plan.digest().substr(0, 12), "\n", plan.reason(), "\n\n", UnitsText(response, total), "\n",
      SlotsText(plan, loads, total), "\n", LinksText(response, explain),
      absl::StrFormat(
          "makespan %s, lower bound %s, balance %s (makespan over mean; 1 is perfect)\n",
          SecondsText(plan.makespan_seconds()), SecondsText(plan.lower_bound_seconds()),
          mean > 0 ? absl::StrFormat("%.3f", plan.makespan_seconds() / mean) : "-"));
}

std::string PlanJson(const v1::GetPlanResponse& plan) { return ToJson(plan) + "\n"; }

}  // namespace dmuon::ctl
