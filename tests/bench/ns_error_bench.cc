// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How far each form and precision of Newton-Schulz is from what it stands for, relative Frobenius: from the
// same polynomials in double ("rounding") and from the exact polar factor ("polar"). The latter is mostly
// the polynomials' own. Prints the table of kernels/README.md.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/backend.h"
#include "kernels/cpu/reference.h"
#include "tests/kernels/spectra.h"

namespace dmuon::kernels {
namespace {

struct Case {
  std::string_view spectrum;
  int64_t rows, cols;
};
constexpr Case kCases[] = {{"gaussian", 64, 64},   {"gaussian", 64, 256},   {"gaussian", 256, 64},
                           {"gaussian", 20, 1000}, {"log 1e-3", 64, 64},    {"log 1e-3", 64, 256},
                           {"log 1e-7", 64, 64},   {"log 1e-7", 64, 256},   {"rank 1/8", 64, 64},
                           {"rank 1/8", 64, 256},  {"gaussian", 1, 256},    {"gaussian", 256, 1},
                           {"gaussian", 256, 256}, {"log 1e-3", 1000, 20}};

struct Way {
  std::string_view name;
  Method method;
};
constexpr Way kWays[] = {{"standard fp32", {Form::kStandard, Precision::kFloat32}},
                         {"gram fp32", {Form::kGram, Precision::kFloat32}},
                         {"standard bf16", {Form::kStandard, Precision::kBFloat16}},
                         {"gram bf16", {Form::kGram, Precision::kBFloat16}}};

struct Set {
  std::string_view name;
  CoefficientSet set;
  int iterations;
};
constexpr Set kSets[] = {{"jordan", CoefficientSet::kJordan, 5},
                         {"you", CoefficientSet::kYou, 5},
                         {"polar express", CoefficientSet::kPolarExpress, 5},
                         {"polar express x8", CoefficientSet::kPolarExpress, 8}};

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

int Main(int argc, char** argv) {
  CLI::App app("Error of Newton-Schulz by form and precision");
  std::string json;
  app.add_option("--json", json, "write rows and summary to this file");
  CLI11_PARSE(app, argc, argv);
  const auto backend = MakeBackend("cpu");
  std::vector<std::string> rows;
  int diverged = 0;
  for (const Set& set : kSets) {
    std::cout << absl::StrFormat("\n%-16s %-10s", set.name, "shape");
    for (const Way& way : kWays) std::cout << absl::StrFormat(" %22s", way.name);
    std::cout << "\n" << std::string(27, ' ');
    for (size_t i = 0; i < std::size(kWays); ++i) std::cout << absl::StrFormat(" %11s %10s", "rounding", "polar");
    std::cout << "\n";
    const NewtonSchulz ns{.coefficients = set.set, .iterations = set.iterations};
    for (const Case& c : kCases) {
      const SpectralMatrix input = WithSpectrum(c.rows, c.cols, Spectrum(c.spectrum, c.rows, c.cols), 1);
      std::vector<double> judge(input.x.begin(), input.x.end());
      reference::Orthogonalize(ns, c.rows, c.cols, judge);
      std::cout << absl::StrFormat("%-16s %-10s", c.spectrum, absl::StrCat(c.rows, "x", c.cols));
      for (const Way& way : kWays) {
        Scratch scratch;
        std::vector<float> x = input.x;
        const bool ok = (*backend)->Orthogonalize(ns, way.method, {x.data(), c.rows, c.cols}, scratch).ok();
        diverged += ok ? 0 : 1;
        const double rounding = Distance(x, judge);
        const double polar = Distance(x, input.polar);
        std::cout << absl::StrFormat(" %11.1e%s%10.3f", rounding, ok ? " " : "!", polar);
        rows.push_back(absl::StrFormat(
            R"({"set": "%s", "spectrum": "%s", "rows": %d, "cols": %d, "way": "%s", "rounding": %.3e, "polar": %.4f, "diverged": %s})",
            set.name, c.spectrum, c.rows, c.cols, way.name, rounding, polar, ok ? "false" : "true"));
      }
      std::cout << "\n";
    }
  }
  std::cout << "\n! the result was found to have diverged; an owner computes the standard form instead\n";
  if (json.empty()) return 0;
  std::ofstream(json) << absl::StrFormat("{\"rows\": [%s], \"summary\": {\"diverged\": %d}}\n",
                                         absl::StrJoin(rows, ",\n"), diverged);
  return 0;
}

}  // namespace
}  // namespace dmuon::kernels

int main(int argc, char** argv) { return dmuon::kernels::Main(argc, argv); }
