// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/ctl/report.h"
#include "daemon/ctl/table.h"
#include "daemon/plan/timings.h"

namespace dmuon::ctl {
namespace {

// "normuon"; "adamw" for the element-wise one.
std::string OptimizerText(const v1::Group& optimizer) {
  if (!optimizer.has_muon()) return "adamw";
  constexpr absl::string_view kPrefix = "VARIANT_";
  const v1::Variant variant =
      optimizer.muon().variant() == v1::VARIANT_UNSPECIFIED ? v1::VARIANT_MUON : optimizer.muon().variant();
  return absl::AsciiStrToLower(v1::Variant_Name(variant).substr(kPrefix.size()));
}

// What competes with each other: one optimizer, one shape, one precision.
using Contest = std::tuple<std::string, int64_t, int64_t, int>;

Contest ContestOf(const v1::UnitTime& time) {
  return {time.optimizer().SerializeAsString(), time.rows(), time.cols(), time.method().precision()};
}

std::map<Contest, double> Fastest(const v1::GetKernelsResponse& kernels) {
  std::map<Contest, double> fastest;
  for (const v1::UnitTime& time : kernels.times()) {
    if (!plan::IsAccurate(time)) continue;
    const auto [best, first] = fastest.try_emplace(ContestOf(time), time.seconds());
    if (!first && time.seconds() < best->second) best->second = time.seconds();
  }
  return fastest;
}

std::string ErrorText(const v1::UnitTime& time) {
  if (!time.has_method()) return "-";
  return absl::StrCat(absl::StrFormat("%.1e", time.error()), plan::IsAccurate(time) ? "" : ", not used");
}

}  // namespace

std::string MethodText(const v1::Method& method) {
  if (method.form() == v1::FORM_UNSPECIFIED) return "-";
  return absl::StrCat(method.form() == v1::FORM_GRAM ? "gram" : "standard", " ",
                      method.precision() == v1::PRECISION_BF16 ? "bf16" : "fp32");
}

std::string KernelsText(const v1::GetKernelsResponse& kernels) {
  const std::map<Contest, double> fastest = Fastest(kernels);
  Table table({{"optimizer"}, {"unit", Align::kRight}, {"method"}, {"time", Align::kRight}, {""}, {"error"}});
  for (const v1::UnitTime& time : kernels.times()) {
    const auto best = fastest.find(ContestOf(time));
    table.Add({OptimizerText(time.optimizer()), absl::StrCat(time.rows(), "x", time.cols()), MethodText(time.method()),
               SecondsText(time.seconds()), best != fastest.end() && best->second == time.seconds() ? "*" : "",
               ErrorText(time)});
  }
  return absl::StrCat("backend ", kernels.backend(), " on ", kernels.device(), ", ", kernels.slots(), " slots of ",
                      kernels.threads_per_slot(), " threads at work\n", "kept in ",
                      kernels.cache().empty() ? "memory" : kernels.cache(), "\n",
                      kernels.progress().empty() ? "" : absl::StrCat("measuring ", kernels.progress(), "\n"), "\n",
                      table.empty() ? "nothing was measured yet\n" : table.Text());
}

std::string KernelsJson(const v1::GetKernelsResponse& kernels) { return ToJson(kernels) + "\n"; }

}  // namespace dmuon::ctl
