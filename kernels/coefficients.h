// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Constants of the matrix optimizers: Newton-Schulz coefficient sets, shape scales, operation
// counts. Everything here is constexpr and free of state; the planner prices plans with the same
// formulas that the kernels obey.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dmuon::kernels {

// One Newton-Schulz iteration maps every singular value s to a*s + b*s^3 + c*s^5.
struct Quintic {
  double a, b, c;

  [[nodiscard]] constexpr double Of(double s) const { return s * (a + s * s * (b + s * s * c)); }

  friend constexpr bool operator==(const Quintic&, const Quintic&) = default;
};

enum class CoefficientSet : uint8_t { kJordan, kYou, kPolarExpress };
inline constexpr CoefficientSet kCoefficientSets[] = {CoefficientSet::kJordan, CoefficientSet::kYou,
                                                      CoefficientSet::kPolarExpress};

inline constexpr int kListedIterations = 5;
using CoefficientTable = std::array<Quintic, kListedIterations>;

// Keller Jordan's Muon: the same polynomial at every step.
inline constexpr CoefficientTable kJordan = {{{3.4445, -4.7750, 2.0315},
                                              {3.4445, -4.7750, 2.0315},
                                              {3.4445, -4.7750, 2.0315},
                                              {3.4445, -4.7750, 2.0315},
                                              {3.4445, -4.7750, 2.0315}}};

// You Jiacheng's set (also published as "quintic" by NVIDIA Emerging-Optimizers).
inline constexpr CoefficientTable kYou = {{{4.0848, -6.8946, 2.9270},
                                           {3.9505, -6.3029, 2.6377},
                                           {3.7418, -5.5913, 2.3037},
                                           {2.8769, -3.1427, 1.2046},
                                           {2.8366, -3.0525, 1.2012}}};

// Polar Express (arXiv 2505.16932), l = 1e-3, before its safety factor: these diverge for a
// singular value above 1, so they are never used raw.
inline constexpr CoefficientTable kPolarExpressRaw = {
    {{8.28721201814563, -23.595886519098837, 17.300387312530933},
     {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
     {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
     {3.3184196573706015, -2.488488024314874, 0.51004894012372},
     {2.300652019954817, -1.6689039845747493, 0.4188073119525673}}};

// The factor by which an input may exceed 1; 1.05 on every step, as in Dao-AILab's Gram
// Newton-Schulz and X-Square's dmuon.
inline constexpr double kPolarExpressSafety = 1.05;

constexpr CoefficientTable WithSafety(const CoefficientTable& raw, double safety) {
  CoefficientTable out{};
  const double cube = safety * safety * safety;
  for (size_t i = 0; i < raw.size(); ++i) {
    out[i] = {raw[i].a / safety, raw[i].b / cube, raw[i].c / (cube * safety * safety)};
  }
  return out;
}

inline constexpr CoefficientTable kPolarExpress = WithSafety(kPolarExpressRaw, kPolarExpressSafety);

constexpr const CoefficientTable& TableOf(CoefficientSet set) {
  switch (set) {
    case CoefficientSet::kYou:
      return kYou;
    case CoefficientSet::kPolarExpress:
      return kPolarExpress;
    case CoefficientSet::kJordan:
      break;
  }
  return kJordan;
}

inline constexpr int kMaxPolynomials = 20;

// What Newton-Schulz iterates with: a published set, or a list of the user's own.
class Polynomials {
 public:
  constexpr Polynomials(CoefficientSet set) : Polynomials(std::span<const Quintic>(TableOf(set))) {}  // NOLINT(google-explicit-constructor)
  // 1 to kMaxPolynomials of them; what is beyond is left out.
  constexpr explicit Polynomials(std::span<const Quintic> list)
      : count_(std::min<size_t>(list.size(), kMaxPolynomials)) {
    std::copy_n(list.begin(), count_, list_.begin());
  }

  // Of iteration `i` of any length: the last polynomial of a list repeats.
  [[nodiscard]] constexpr Quintic at(int i) const { return list_[std::min(static_cast<size_t>(i), count_ - 1)]; }
  [[nodiscard]] constexpr std::span<const Quintic> list() const { return std::span(list_).first(count_); }

  friend constexpr bool operator==(const Polynomials&, const Polynomials&) = default;

 private:
  std::array<Quintic, kMaxPolynomials> list_{};
  size_t count_;
};

// The factor on an orthogonalised update of a rows x cols matrix (rows = fan-out). Always the
// dimensions of the whole (flattened) matrix, never of a shard. The word "spectral" means
// sqrt(max(rows, cols)) in some libraries; here it is sqrt(rows / cols) and nothing else.
enum class ScaleRule : uint8_t {
  kNone,           // 1
  kOriginal,       // sqrt(max(1, rows / cols)): Keller Jordan, torch.optim.Muon "original"
  kMatchRmsAdamw,  // 0.2 * sqrt(max(rows, cols)): Moonlight, arXiv 2502.16982
  kSpectral,       // sqrt(rows / cols): unit spectral-norm change
};

inline double Scale(ScaleRule rule, int64_t rows, int64_t cols) {
  const double ratio = static_cast<double>(rows) / static_cast<double>(cols);
  switch (rule) {
    case ScaleRule::kOriginal:
      return std::sqrt(std::max(1.0, ratio));
    case ScaleRule::kMatchRmsAdamw:
      return 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    case ScaleRule::kSpectral:
      return std::sqrt(ratio);
    case ScaleRule::kNone:
      break;
  }
  return 1.0;
}

// Iteration `i` of the Gram form starts from the matrix anew.
constexpr bool GramRestartsAt(int i) { return i % 3 == 2; }
// Before iteration `i` of so many, or after the last, it multiplies with the matrix.
constexpr bool GramPassesAt(int i, int iterations) { return i == iterations || GramRestartsAt(i); }
constexpr int GramPasses(int iterations) {
  int passes = 0;
  for (int i = 1; i <= iterations; ++i) passes += GramPassesAt(i, iterations) ? 1 : 0;
  return passes;
}

// Vectors that a block Krylov iteration for the `rank` largest of s singular directions works with in the end; s,
// the whole space, where the block would span it anyway.
inline constexpr int64_t kOversampling = 8;
inline constexpr int64_t kKrylovIterations = 2;
constexpr int64_t KrylovWidth(int64_t rank, int64_t s) {
  return std::min(kKrylovIterations * (rank + kOversampling), s);
}

// Multiply-adds counted twice. Standard Newton-Schulz with symmetric products for XX^T and A*A:
// per iteration l*s^2 + s^3 + 2*l*s^2, where s is the shorter and l the longer side.
constexpr double NewtonSchulzFlops(int64_t rows, int64_t cols, int iterations) {
  const double s = static_cast<double>(std::min(rows, cols));
  const double l = static_cast<double>(std::max(rows, cols));
  return iterations * (3.0 * l * s * s + s * s * s);
}

// The same for the Gram form: X*X^T and Q*X each pass, and of symmetric products on the shorter side one an
// iteration, and three in each that no restart follows.
constexpr double GramNewtonSchulzFlops(int64_t rows, int64_t cols, int iterations) {
  const double s = static_cast<double>(std::min(rows, cols));
  const double l = static_cast<double>(std::max(rows, cols));
  const int passes = GramPasses(iterations);
  return 3.0 * passes * l * s * s + (iterations + 3.0 * (iterations - passes)) * s * s * s;
}

// Of these, what a bf16 method leaves in fp32: of each iteration that no pass follows two products on the shorter side,
// and a third where none follows the next one either.
constexpr double GramFloat32Flops(int64_t rows, int64_t cols, int iterations) {
  const double s = static_cast<double>(std::min(rows, cols));
  int products = 0;
  for (int i = 1; i < iterations; ++i) {
    if (!GramPassesAt(i, iterations)) products += GramPassesAt(i + 1, iterations) ? 2 : 3;
  }
  return products * s * s * s;
}

// The same for the `rank` largest singular directions (top_k.h): fp32 products, and in double the bases and
// the eigenproblem of the block.
struct TopKOperations {
  double products, small;
};
constexpr TopKOperations TopKFlops(int64_t rows, int64_t cols, int64_t rank) {
  const double s = static_cast<double>(std::min(rows, cols));
  const double l = static_cast<double>(std::max(rows, cols));
  const double k = static_cast<double>(rank);
  const double w = static_cast<double>(KrylovWidth(rank, std::min(rows, cols)));
  const bool krylov = w < s;
  // There and back with half a block, twice; the matrix on the basis; vectors on both sides; two polishing steps;
  // the result.
  const double products = (krylov ? 6.0 * l * s * w + 2.0 * w * k * s : 0.0) + 2.0 * w * k * l + 6.0 * l * k * k +
                          2.0 * l * s * k;
  return {products, (krylov ? 4.0 * s * w * w : 0.0) + l * w * w + 9.0 * w * w * w};
}

// Element-wise work is bound by memory, so it is priced in bytes: what one unit's step reads and
// writes of gradient, weight and state, all fp32.
constexpr double ElementwiseBytes(int64_t elements, int64_t state_elements) {
  return 4.0 * static_cast<double>((1 + 2) * elements + 2 * state_elements);
}

}  // namespace dmuon::kernels
