// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/stage_factors.h"

namespace dmuon::kernels {
namespace {

// -- acceleration and momentum -----------------------------------------------------------------------

template <typename T>
void MomentumDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                       const BasicUnitState<T>& state, std::span<T> update) {
  const auto [own, slow] = AccelerationOf(optimizer, clip, state.step);
  const auto [keep, take] = MomentumOf(optimizer, hyper);
  // Nesterov is the plain form with the momentum stage applied once more to the same gradient.
  const double of_momentum = optimizer.nesterov ? keep * keep : keep;
  const double of_gradient = optimizer.nesterov ? take + keep * take : take;
  const double a = of_gradient * own;
  const T* __restrict g = gradient.data();
  const T* __restrict m = state.momentum.data();
  T* __restrict u = update.data();
  for (size_t i = 0; i < update.size(); ++i) {
    u[i] = static_cast<T>(a * static_cast<double>(g[i]) + of_momentum * static_cast<double>(m[i]));
  }
  if (slow == 0.0) return;
  const double b = of_gradient * slow;
  const T* __restrict e = state.slow_gradient.data();
  for (size_t i = 0; i < update.size(); ++i) {
    u[i] = static_cast<T>(static_cast<double>(u[i]) + b * static_cast<double>(e[i]));
  }
}

template <typename T>
void CommitMomentum(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                    BasicUnitState<T>& state) {
  const auto [own, slow] = AccelerationOf(optimizer, clip, state.step);
  const auto [keep, take] = MomentumOf(optimizer, hyper);
  const double a = take * own;
  const T* __restrict g = gradient.data();
  T* __restrict m = state.momentum.data();
  for (size_t i = 0; i < gradient.size(); ++i) {
    m[i] = static_cast<T>(keep * static_cast<double>(m[i]) + a * static_cast<double>(g[i]));
  }
  if (!optimizer.accelerates()) return;
  const double b = take * slow;
  const double kept = state.step == 0 ? 0.0 : optimizer.slow_beta;
  T* __restrict e = state.slow_gradient.data();
  for (size_t i = 0; i < gradient.size(); ++i) {
    m[i] = static_cast<T>(static_cast<double>(m[i]) + b * static_cast<double>(e[i]));
    e[i] = static_cast<T>(kept * static_cast<double>(e[i]) + (1.0 - kept) * clip * static_cast<double>(g[i]));
  }
}

// -- second moments --------------------------------------------------------------------------------

double NextMoment(double beta2, double moment, double square) { return beta2 * moment + (1.0 - beta2) * square; }

template <typename T>
double Square(T value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

// The sums of squares of each row, then those of each column, times `factor`.
template <typename T>
std::vector<double> LineSums(std::span<const T> values, int64_t rows, int64_t cols, double factor) {
  std::vector<double> sums(static_cast<size_t>(rows + cols));
  double* columns = sums.data() + rows;
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = values.data() + r * cols;
    double sum = 0.0;
    for (int64_t c = 0; c < cols; ++c) {
      const double square = factor * Square(row[c]);
      sum += square;
      columns[c] += square;
    }
    sums[static_cast<size_t>(r)] = sum;
  }
  return sums;
}

// The moments of rows and columns after this step.
template <typename T>
std::vector<double> NextFactors(const Hyper& hyper, double clip, std::span<const T> gradient,
                                const BasicUnitState<T>& state) {
  std::vector<double> next = LineSums(gradient, state.rows, state.cols, clip * clip);
  const auto rows = static_cast<size_t>(state.rows);
  for (size_t i = 0; i < next.size(); ++i) {
    const T moment = i < rows ? state.second_moment[i] : state.column_moment[i - rows];
    next[i] = NextMoment(hyper.beta2, static_cast<double>(moment), next[i]);
  }
  return next;
}

template <typename T>
void DivideByFactors(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                     const BasicUnitState<T>& state, std::span<T> update) {
  const std::vector<double> factors = NextFactors(hyper, clip, gradient, state);
  const double* columns = factors.data() + state.rows;
  const double total = std::accumulate(columns, columns + state.cols, 0.0);
  const double inverse = 1.0 / std::max(total, optimizer.second_moment_eps);
  for (int64_t r = 0; r < state.rows; ++r) {
    const double row = factors[static_cast<size_t>(r)] * inverse;
    T* u = update.data() + r * state.cols;
    for (int64_t c = 0; c < state.cols; ++c) {
      u[c] = static_cast<T>(static_cast<double>(u[c]) / (std::sqrt(row * columns[c]) + optimizer.second_moment_eps));
    }
  }
}

template <typename T>
void DivideByMoment(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                    const BasicUnitState<T>& state, std::span<T> update) {
  const double eps = optimizer.second_moment_eps;
  const double beta2 = hyper.beta2;
  const T* __restrict g = gradient.data();
  const T* __restrict v = state.second_moment.data();
  T* __restrict u = update.data();
  for (size_t i = 0; i < update.size(); ++i) {
    const double moment = NextMoment(beta2, static_cast<double>(v[i]), Square(clip * static_cast<double>(g[i])));
    u[i] = static_cast<T>(static_cast<double>(u[i]) / (std::sqrt(moment) + eps));
  }
}

template <typename T>
void CommitGradientMoment(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                          BasicUnitState<T>& state) {
  if (optimizer.second_moment == SecondMoment::kFactored) {
    const std::vector<double> factors = NextFactors(hyper, clip, gradient, std::as_const(state));
    std::copy_n(factors.begin(), state.rows, state.second_moment.begin());
    std::copy_n(factors.begin() + state.rows, state.cols, state.column_moment.begin());
    return;
  }
  const double beta2 = hyper.beta2;
  const T* __restrict g = gradient.data();
  T* __restrict v = state.second_moment.data();
  for (size_t i = 0; i < gradient.size(); ++i) {
    v[i] = static_cast<T>(NextMoment(beta2, static_cast<double>(v[i]), Square(clip * static_cast<double>(g[i]))));
  }
}

template <typename T>
double FrobeniusNorm(std::span<const T> values) {
  double sum = 0.0;
  for (const T value : values) sum += Square(value);
  return std::sqrt(sum);
}

// Commits the second moment of the update and divides the update by it; returns the factor that gives it the
// size which `rescale` says.
template <typename T>
double NormalizeUpdate(const Optimizer& optimizer, const Hyper& hyper, std::span<T> update, BasicUnitState<T>& state) {
  const double eps = optimizer.second_moment_eps;
  const double before = FrobeniusNorm(std::span<const T>(update));
  const bool by_rows = optimizer.second_moment == SecondMoment::kRows;
  for (int64_t r = 0; r < state.rows; ++r) {
    const std::span<T> row = update.subspan(static_cast<size_t>(r * state.cols), static_cast<size_t>(state.cols));
    double divisor = 0.0;
    if (by_rows) {
      const double norm = FrobeniusNorm(std::span<const T>(row));
      T& moment = state.second_moment[static_cast<size_t>(r)];
      const double next = NextMoment(hyper.beta2, static_cast<double>(moment),
                                     norm * norm / static_cast<double>(state.cols));
      moment = static_cast<T>(next);
      divisor = std::sqrt(next) + eps;
    }
    for (int64_t c = 0; c < state.cols; ++c) {
      T& u = row[static_cast<size_t>(c)];
      if (!by_rows) {
        T& moment = state.second_moment[static_cast<size_t>(r * state.cols + c)];
        const double next = NextMoment(hyper.beta2, static_cast<double>(moment), Square(u));
        moment = static_cast<T>(next);
        divisor = std::sqrt(next) + eps;
      }
      u = static_cast<T>(static_cast<double>(u) / divisor);
    }
  }
  const double after = FrobeniusNorm(std::span<const T>(update));
  return RescaleFactor(optimizer, before, after, update.size());
}

// -- selection -------------------------------------------------------------------------------------

// Lines of the shorter dimension, rows of a square. Equal sums: the first wins.
template <typename T>
std::vector<int64_t> SelectLines(const Optimizer& optimizer, double clip, std::span<const T> gradient,
                                 const BasicUnitState<T>& state) {
  const bool rows = state.rows <= state.cols;
  const int64_t lines = rows ? state.rows : state.cols;
  std::vector<double> sums(static_cast<size_t>(lines));
  for (int64_t r = 0; r < state.rows; ++r) {
    for (int64_t c = 0; c < state.cols; ++c) {
      const auto i = static_cast<size_t>(r * state.cols + c);
      sums[static_cast<size_t>(rows ? r : c)] +=
          std::abs(static_cast<double>(state.momentum[i]) + clip * static_cast<double>(gradient[i]));
    }
  }
  return LargestLines(optimizer, sums);
}

// Calls f(index in the unit, index in the matrix of the selected lines) for each of their elements.
template <typename T, typename F>
void ForEachSelected(const std::vector<int64_t>& lines, const BasicUnitState<T>& state, F f) {
  const auto count = static_cast<int64_t>(lines.size());
  if (state.rows <= state.cols) {
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t c = 0; c < state.cols; ++c) {
        f(static_cast<size_t>(lines[static_cast<size_t>(k)] * state.cols + c), static_cast<size_t>(k * state.cols + c));
      }
    }
    return;
  }
  for (int64_t r = 0; r < state.rows; ++r) {
    for (int64_t k = 0; k < count; ++k) {
      f(static_cast<size_t>(r * state.cols + lines[static_cast<size_t>(k)]), static_cast<size_t>(r * count + k));
    }
  }
}

template <typename T>
MatrixShape SelectDirection(const std::vector<int64_t>& lines, const BasicUnitState<T>& state, std::span<T> update) {
  // To the front, in rising order: no element is overwritten before it has been read.
  ForEachSelected(lines, state, [&](size_t from, size_t to) { update[to] = update[from]; });
  const auto count = static_cast<int64_t>(lines.size());
  return state.rows <= state.cols ? MatrixShape{count, state.cols} : MatrixShape{state.rows, count};
}

// -- weights ---------------------------------------------------------------------------------------

// W <- decay*W - rate*update.
template <typename T>
void MoveWeight(const Optimizer& optimizer, double decay, double rate, std::span<const T> update,
                std::span<T> weight) {
  const T* __restrict u = update.data();
  T* __restrict w = weight.data();
  if (optimizer.weight_decay == WeightDecay::kDecoupled) {
    for (size_t i = 0; i < weight.size(); ++i) {
      w[i] = static_cast<T>(decay * static_cast<double>(w[i]) - rate * static_cast<double>(u[i]));
    }
    return;
  }
  for (size_t i = 0; i < weight.size(); ++i) {
    const auto wide = static_cast<double>(w[i]);
    const auto step = static_cast<double>(u[i]);
    w[i] = static_cast<T>((wide * step >= 0.0 ? decay : 1.0) * wide - rate * step);
  }
}

// `update` holds the selected lines only; the others just decay.
template <typename T>
void MoveSelected(const Optimizer& optimizer, const Hyper& hyper, double decay, double rate,
                  const std::vector<int64_t>& lines, std::span<const T> update, BasicUnitState<T>& state) {
  std::vector<T> whole(state.weight.size());
  ForEachSelected(lines, state, [&](size_t to, size_t from) {
    whole[to] = update[from];
    state.momentum[to] = static_cast<T>(hyper.momentum * static_cast<double>(state.momentum[to]));
  });
  MoveWeight<T>(optimizer, decay, rate, whole, state.weight);
}

template <typename T>
void ApplyAdam(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
               BasicUnitState<T>& state) {
  const auto [beta1, beta2, decay, rate, inverse_root, eps, cautious] = AdamOf(optimizer, hyper, state.step);
  const T* __restrict gradients = gradient.data();
  T* __restrict m = state.momentum.data();
  T* __restrict v = state.second_moment.data();
  T* __restrict w = state.weight.data();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = clip * static_cast<double>(gradients[i]);
    const double moment = beta1 * static_cast<double>(m[i]) + (1.0 - beta1) * g;
    const double square = NextMoment(beta2, static_cast<double>(v[i]), g * g);
    const double step = moment / (std::sqrt(square) * inverse_root + eps);
    const auto wide = static_cast<double>(w[i]);
    m[i] = static_cast<T>(moment);
    v[i] = static_cast<T>(square);
    w[i] = static_cast<T>((cautious && wide * step < 0.0 ? 1.0 : decay) * wide - rate * step);
  }
}

}  // namespace

template <typename T>
MatrixShape MakeDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                          const BasicUnitState<T>& state, std::span<T> update) {
  MomentumDirection(optimizer, hyper, clip, gradient, state, update);
  if (optimizer.selects()) {
    return SelectDirection(SelectLines(optimizer, clip, gradient, state), state, update);
  }
  if (optimizer.moment_of == MomentOf::kGradient) {
    if (optimizer.second_moment == SecondMoment::kElementwise) {
      DivideByMoment(optimizer, hyper, clip, gradient, state, update);
    } else if (optimizer.second_moment == SecondMoment::kFactored) {
      DivideByFactors(optimizer, hyper, clip, gradient, state, update);
    }
  }
  if (optimizer.sign) {
    for (T& u : update) u = static_cast<T>(u > T{0} ? 1 : (u < T{0} ? -1 : 0));
  }
  return {state.rows, state.cols};
}

template <typename T>
void ApplyStep(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
               std::span<T> update, BasicUnitState<T>& state) {
  if (!optimizer.needs_whole_matrix()) {
    state.step += 1;  // first: bias correction counts this update
    ApplyAdam(optimizer, hyper, clip, gradient, state);
    return;
  }
  const double decay = 1.0 - hyper.lr * hyper.weight_decay;
  const double rate = hyper.lr * Scale(optimizer.scale, state.rows, state.cols);
  if (optimizer.selects()) {
    const std::vector<int64_t> lines = SelectLines(optimizer, clip, gradient, std::as_const(state));
    CommitMomentum(optimizer, hyper, clip, gradient, state);
    MoveSelected<T>(optimizer, hyper, decay, rate, lines, update, state);
  } else {
    const bool normalizes = optimizer.second_moment != SecondMoment::kNone;
    double size = 1.0;
    if (normalizes && optimizer.moment_of == MomentOf::kUpdate) {
      size = NormalizeUpdate(optimizer, hyper, update, state);
    } else if (normalizes) {
      CommitGradientMoment(optimizer, hyper, clip, gradient, state);
    }
    CommitMomentum(optimizer, hyper, clip, gradient, state);
    MoveWeight<T>(optimizer, decay, rate * size, update, state.weight);
  }
  state.step += 1;
}

template MatrixShape MakeDirection(const Optimizer&, const Hyper&, double, std::span<const float>,
                                   const BasicUnitState<float>&, std::span<float>);
template MatrixShape MakeDirection(const Optimizer&, const Hyper&, double, std::span<const double>,
                                   const BasicUnitState<double>&, std::span<double>);
template void ApplyStep(const Optimizer&, const Hyper&, double, std::span<const float>, std::span<float>,
                        BasicUnitState<float>&);
template void ApplyStep(const Optimizer&, const Hyper&, double, std::span<const double>, std::span<double>,
                        BasicUnitState<double>&);

}  // namespace dmuon::kernels
