// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/stages.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/loops.h"
#include "kernels/stage_factors.h"

namespace dmuon::kernels {
namespace {

// The state of `count` elements from `at` on. A second moment that has one number for several elements stays whole.
template <typename T>
BasicUnitState<T> Part(const Optimizer& optimizer, const BasicUnitState<T>& state, size_t at, size_t count) {
  BasicUnitState<T> part = state;
  part.weight = state.weight.subspan(at, count);
  part.momentum = state.momentum.subspan(at, count);
  if (optimizer.second_moment == SecondMoment::kElementwise) {
    part.second_moment = state.second_moment.subspan(at, count);
  }
  if (optimizer.accelerates()) part.slow_gradient = state.slow_gradient.subspan(at, count);
  return part;
}

// Where row `row` of a matrix begins.
size_t RowAt(int64_t row, int64_t cols) { return static_cast<size_t>(row) * static_cast<size_t>(cols); }

// The sums of each row's terms, then those of each column's. add(at, count, columns) returns the sum of those of
// `count` elements from `at` on, all of one row, and adds each to its column. They are added up in tiles whose size the
// matrix decides, and those in rising order.
template <class Add>
std::vector<double> LineSums(int64_t rows, int64_t cols, const Add& add) {
  constexpr size_t kStripe = 4 * kBlock;  // its totals stay in a cache
  const auto height = static_cast<size_t>(rows);
  const auto width = static_cast<size_t>(cols);
  const size_t band_rows = std::max<size_t>(64, kGrain / std::max<size_t>(width, 1));
  const size_t bands = (height + band_rows - 1) / band_rows;
  const size_t stripes = (width + kStripe - 1) / kStripe;
  std::vector<double> of_rows(stripes * height);
  std::vector<double> of_columns(bands * width);
  ForEach(bands * stripes, [&](size_t tile) {
    const size_t band = tile / stripes;
    const size_t stripe = tile % stripes;
    const size_t first = stripe * kStripe;
    for (size_t r = band * band_rows; r < std::min(height, (band + 1) * band_rows); ++r) {
      WalkBlocks(first, std::min(width, first + kStripe), [&](size_t c, size_t count) {
        of_rows[stripe * height + r] += add(r * width + c, count, of_columns.data() + band * width + c);
      });
    }
  });
  std::vector<double> sums(height + width);
  for (size_t i = 0; i < of_rows.size(); ++i) sums[i % height] += of_rows[i];
  for (size_t i = 0; i < of_columns.size(); ++i) sums[height + i % width] += of_columns[i];
  return sums;
}

// -- acceleration and momentum -----------------------------------------------------------------------

// Calls last(a, x, b, y), which shall make a*x + b*y, or what becomes of that, of the whole span.
template <typename T, class Last>
void MomentumDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                       const BasicUnitState<T>& state, std::span<T> update, const Last& last) {
  const auto [own, slow] = AccelerationOf(optimizer, clip, state.step);
  const auto [keep, take] = MomentumOf(optimizer, hyper);
  // Nesterov is the plain form with the momentum stage applied once more to the same gradient.
  const double of_momentum = optimizer.nesterov ? keep * keep : keep;
  const double of_gradient = optimizer.nesterov ? take + keep * take : take;
  const T* g = gradient.data();
  const T* m = state.momentum.data();
  T* u = update.data();
  if (slow == 0.0) {
    last(of_gradient * own, g, of_momentum, m);
  } else {
    Stages<T>().combine(update.size(), of_gradient * own, g, of_momentum, m, u);
    last(1.0, u, of_gradient * slow, state.slow_gradient.data());
  }
}

template <typename T>
void MomentumDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                       const BasicUnitState<T>& state, std::span<T> update) {
  MomentumDirection(optimizer, hyper, clip, gradient, state, update, [&](double a, const T* x, double b, const T* y) {
    Stages<T>().combine(update.size(), a, x, b, y, update.data());
  });
}

template <typename T>
void CommitMomentum(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                    BasicUnitState<T>& state) {
  const auto [own, slow] = AccelerationOf(optimizer, clip, state.step);
  const auto [keep, take] = MomentumOf(optimizer, hyper);
  const auto combine = Stages<T>().combine;
  const size_t n = gradient.size();
  T* m = state.momentum.data();
  combine(n, keep, m, take * own, gradient.data(), m);
  if (!optimizer.accelerates()) return;
  const double kept = state.step == 0 ? 0.0 : optimizer.slow_beta;
  T* e = state.slow_gradient.data();
  combine(n, 1.0, m, take * slow, e, m);
  combine(n, kept, e, (1.0 - kept) * clip, gradient.data(), e);
}

// -- second moments --------------------------------------------------------------------------------

double NextMoment(double beta2, double moment, double square) { return beta2 * moment + (1.0 - beta2) * square; }

// The moments of rows and columns after this step.
template <typename T>
std::vector<double> NextFactors(const Hyper& hyper, double clip, std::span<const T> gradient,
                                const BasicUnitState<T>& state) {
  std::vector<double> next = LineSums(state.rows, state.cols, [&](size_t at, size_t count, double* columns) {
    return Stages<T>().add_squares(count, gradient.data() + at, columns);
  });
  const auto rows = static_cast<size_t>(state.rows);
  for (size_t i = 0; i < next.size(); ++i) {
    const T moment = i < rows ? state.second_moment[i] : state.column_moment[i - rows];
    next[i] = NextMoment(hyper.beta2, static_cast<double>(moment), clip * clip * next[i]);
  }
  return next;
}

template <typename T>
void CommitFactors(const Hyper& hyper, double clip, std::span<const T> gradient, BasicUnitState<T>& state) {
  const std::vector<double> factors = NextFactors(hyper, clip, gradient, std::as_const(state));
  std::copy_n(factors.begin(), state.rows, state.second_moment.begin());
  std::copy_n(factors.begin() + state.rows, state.cols, state.column_moment.begin());
}

// Momentum over the root of row * column / total, as a product of roots.
template <typename T>
void FactoredDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                       const BasicUnitState<T>& state, std::span<T> update) {
  std::vector<double> roots = NextFactors(hyper, clip, gradient, state);
  const double eps = optimizer.second_moment_eps;
  const double total = std::accumulate(roots.begin() + state.rows, roots.end(), 0.0);
  for (double& root : roots) root = std::sqrt(root);
  const double inverse = 1.0 / std::sqrt(std::max(total, eps));
  const double* columns = roots.data() + state.rows;
  ForEachRow(state.rows, state.cols, [&](int64_t row) {
    const size_t first = RowAt(row, state.cols);
    WalkBlocks(first, RowAt(row + 1, state.cols), [&](size_t at, size_t n) {
      const std::span<T> part = update.subspan(at, n);
      const Factors of = {roots[static_cast<size_t>(row)] * inverse, columns + (at - first), eps};
      MomentumDirection(optimizer, hyper, clip, gradient.subspan(at, n), Part(optimizer, state, at, n), part,
                        [&](double a, const T* x, double b, const T* y) {
                          Stages<T>().combine_over_factors(n, a, x, b, y, of, part.data());
                        });
      if (optimizer.sign) Stages<T>().sign(n, part.data());
    });
  });
}

template <typename T>
double SumSquares(std::span<const T> values) {
  double sum = 0.0;
  WalkBlocks(0, values.size(), [&](size_t at, size_t n) { sum += Stages<T>().sum_squares(n, values.data() + at); });
  return sum;
}

// Divides a row of the update by the root of its moment, which is committed.
template <typename T>
void NormalizeRow(const Optimizer& optimizer, const Hyper& hyper, double sum_squares, std::span<T> row, T& moment) {
  const double mean = sum_squares / static_cast<double>(row.size());
  const double next = NextMoment(hyper.beta2, static_cast<double>(moment), mean);
  moment = static_cast<T>(next);
  Stages<T>().divide(row.size(), std::sqrt(next) + optimizer.second_moment_eps, row.data());
}

// Commits the second moment of the update and divides the update by it; returns the factor that gives it the
// size which `rescale` says.
template <typename T>
double NormalizeUpdate(const Optimizer& optimizer, const Hyper& hyper, std::span<T> update, BasicUnitState<T>& state) {
  const double eps = optimizer.second_moment_eps;
  const bool by_rows = optimizer.second_moment == SecondMoment::kRows;
  const bool keeps_norm = optimizer.rescale == Rescale::kKeepNorm;
  std::vector<double> before(static_cast<size_t>(state.rows));  // sums of squares
  std::vector<double> after(before.size());
  ForEachRow(state.rows, state.cols, [&](int64_t r) {
    const auto line = static_cast<size_t>(r);
    const size_t first = RowAt(r, state.cols);
    const std::span<T> row = update.subspan(first, static_cast<size_t>(state.cols));
    if (by_rows) {
      before[line] = SumSquares(std::span<const T>(row));
      NormalizeRow(optimizer, hyper, before[line], row, state.second_moment[line]);
    }
    WalkBlocks(0, row.size(), [&](size_t at, size_t n) {
      T* u = row.data() + at;
      if (!by_rows) {
        if (keeps_norm) before[line] += Stages<T>().sum_squares(n, u);
        Stages<T>().normalize(n, hyper.beta2, eps, state.second_moment.data() + first + at, u);
      }
      after[line] += Stages<T>().sum_squares(n, u);
    });
  });
  return RescaleFactor(optimizer, std::sqrt(std::accumulate(before.begin(), before.end(), 0.0)),
                       std::sqrt(std::accumulate(after.begin(), after.end(), 0.0)), update.size());
}

// -- selection -------------------------------------------------------------------------------------

// Lines of the shorter dimension, rows of a square. Equal sums: the first wins.
template <typename T>
std::vector<int64_t> SelectLines(const Optimizer& optimizer, double clip, std::span<const T> gradient,
                                 const BasicUnitState<T>& state) {
  const bool rows = state.rows <= state.cols;
  const int64_t lines = rows ? state.rows : state.cols;
  const std::vector<double> all = LineSums(state.rows, state.cols, [&](size_t at, size_t count, double* columns) {
    // Those of columns are not asked for where lines are rows.
    return Stages<T>().add_magnitudes(count, state.momentum.data() + at, clip, gradient.data() + at,
                                      rows ? nullptr : columns);
  });
  const size_t first = rows ? 0 : static_cast<size_t>(state.rows);
  return LargestLines(optimizer, std::span(all).subspan(first, static_cast<size_t>(lines)));
}

// The momentum of the selected lines, one after the other as a matrix.
template <typename T>
MatrixShape SelectDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                            const BasicUnitState<T>& state, std::span<T> update) {
  const std::vector<int64_t> lines = SelectLines(optimizer, clip, gradient, state);
  const auto count = static_cast<int64_t>(lines.size());
  const auto direction = [&](size_t at, std::span<T> to) {
    const size_t n = to.size();
    MomentumDirection(optimizer, hyper, clip, gradient.subspan(at, n), Part(optimizer, state, at, n), to);
  };
  const auto cols = static_cast<size_t>(state.cols);
  if (state.rows <= state.cols) {
    ForEachRow(count, state.cols, [&](int64_t k) {
      const size_t from = RowAt(lines[static_cast<size_t>(k)], state.cols);
      const size_t to = RowAt(k, state.cols);
      WalkBlocks(0, cols, [&](size_t c, size_t n) { direction(from + c, update.subspan(to + c, n)); });
    });
    return {count, state.cols};
  }
  ForEachRow(state.rows, state.cols, [&](int64_t row) {
    size_t to = RowAt(row, count);
    auto line = lines.begin();
    WalkBlocks(0, cols, [&](size_t c, size_t n) {
      T whole[kBlock];
      direction(RowAt(row, state.cols) + c, {whole, n});
      for (; line != lines.end() && static_cast<size_t>(*line) < c + n; ++line) {
        update[to++] = whole[static_cast<size_t>(*line) - c];
      }
    });
  });
  return {state.rows, count};
}

// -- weights ---------------------------------------------------------------------------------------

// W <- decay*W - rate*update.
template <typename T>
void MoveWeight(const Optimizer& optimizer, double decay, double rate, std::span<const T> update,
                std::span<T> weight) {
  T* w = weight.data();
  if (optimizer.weight_decay == WeightDecay::kDecoupled) {
    Stages<T>().combine(weight.size(), decay, w, -rate, update.data(), w);
  } else {
    Stages<T>().move_cautiously(weight.size(), decay, rate, update.data(), w);
  }
}

// `update` holds the selected lines only; the others just decay. Commits the momentum, whose selected lines decay.
template <typename T>
class SelectedStep {
 public:
  SelectedStep(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
               std::span<const T> update, BasicUnitState<T>& state)
      : optimizer_(optimizer), hyper_(hyper), clip_(clip), gradient_(gradient), update_(update), state_(state),
        decay_(1.0 - hyper.lr * hyper.weight_decay),
        rate_(hyper.lr * Scale(optimizer.scale, state.rows, state.cols)),
        lines_(SelectLines(optimizer, clip, gradient, std::as_const(state))) {}

  void Run() {
    const bool rows = state_.rows <= state_.cols;
    ForEachRow(state_.rows, state_.cols, [&](int64_t row) {
      WalkBlocks(0, static_cast<size_t>(state_.cols), [&](size_t c, size_t n) {
        const size_t at = RowAt(row, state_.cols) + c;
        BasicUnitState<T> part = Part(optimizer_, state_, at, n);
        CommitMomentum(optimizer_, hyper_, clip_, gradient_.subspan(at, n), part);
        if (rows) {
          MoveRow(row, c, part);
        } else {
          MoveColumns(row, c, part);
        }
      });
    });
  }

 private:
  // Elements of a row from column `c` on, where lines are rows.
  void MoveRow(int64_t row, size_t c, BasicUnitState<T>& part) const {
    const size_t n = part.weight.size();
    const auto line = std::lower_bound(lines_.begin(), lines_.end(), row);
    if (line == lines_.end() || *line != row) {
      Stages<T>().multiply(n, decay_, part.weight.data());
      return;
    }
    Stages<T>().multiply(n, hyper_.momentum, part.momentum.data());
    const size_t from = RowAt(line - lines_.begin(), state_.cols) + c;
    MoveWeight(optimizer_, decay_, rate_, update_.subspan(from, n), part.weight);
  }
  // The same, where lines are columns.
  void MoveColumns(int64_t row, size_t c, BasicUnitState<T>& part) const {
    const size_t n = part.weight.size();
    T moved[kBlock] = {};
    auto line = std::lower_bound(lines_.begin(), lines_.end(), static_cast<int64_t>(c));
    size_t from = RowAt(row, static_cast<int64_t>(lines_.size())) + static_cast<size_t>(line - lines_.begin());
    for (; line != lines_.end() && static_cast<size_t>(*line) < c + n; ++line) {
      const size_t i = static_cast<size_t>(*line) - c;
      moved[i] = update_[from++];
      part.momentum[i] = static_cast<T>(hyper_.momentum * static_cast<double>(part.momentum[i]));
    }
    MoveWeight<T>(optimizer_, decay_, rate_, {moved, n}, part.weight);
  }

  const Optimizer& optimizer_;
  const Hyper& hyper_;
  const double clip_;
  const std::span<const T> gradient_, update_;
  BasicUnitState<T>& state_;
  const double decay_, rate_;
  const std::vector<int64_t> lines_;  // selected, rising
};

template <typename T>
void ApplyAdam(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
               BasicUnitState<T>& state) {
  const auto [beta1, beta2, decay, rate, inverse_root, eps, cautious] = AdamOf(optimizer, hyper, state.step);
  const AdamStep step = {.clip = clip, .beta1 = beta1, .beta2 = beta2, .inverse_root = inverse_root, .eps = eps,
                         .decay = decay, .rate = rate, .cautious = cautious};
  ForEachBlock(gradient.size(), [&](size_t at, size_t n) {
    Stages<T>().adam(n, step, gradient.data() + at, state.momentum.data() + at, state.second_moment.data() + at,
                     state.weight.data() + at);
  });
}

}  // namespace

template <typename T>
MatrixShape MakeDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const T> gradient,
                          const BasicUnitState<T>& state, std::span<T> update) {
  std::copy(state.basis.begin(), state.basis.end(), update.begin() + static_cast<std::ptrdiff_t>(gradient.size()));
  update = update.first(gradient.size());
  if (optimizer.selects()) return SelectDirection(optimizer, hyper, clip, gradient, state, update);
  if (optimizer.second_moment == SecondMoment::kFactored) {
    FactoredDirection(optimizer, hyper, clip, gradient, state, update);
    return {state.rows, state.cols};
  }
  const bool over_moment =
      optimizer.moment_of == MomentOf::kGradient && optimizer.second_moment == SecondMoment::kElementwise;
  ForEachBlock(update.size(), [&](size_t at, size_t n) {
    const std::span<const T> g = gradient.subspan(at, n);
    const std::span<T> u = update.subspan(at, n);
    const BasicUnitState<T> part = Part(optimizer, state, at, n);
    if (over_moment) {
      const NextMomentOf<T> of = {hyper.beta2, clip, optimizer.second_moment_eps, g.data(), part.second_moment.data()};
      MomentumDirection(optimizer, hyper, clip, g, part, u, [&](double a, const T* x, double b, const T* y) {
        Stages<T>().combine_over_moment(n, a, x, b, y, of, u.data());
      });
    } else {
      MomentumDirection(optimizer, hyper, clip, g, part, u);
    }
    if (optimizer.sign) Stages<T>().sign(n, u.data());
  });
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
  const std::span<const T> basis = update.subspan(gradient.size());
  std::copy(basis.begin(), basis.end(), state.basis.begin());
  update = update.first(gradient.size());
  const double decay = 1.0 - hyper.lr * hyper.weight_decay;
  double rate = hyper.lr * Scale(optimizer.scale, state.rows, state.cols);
  if (optimizer.selects()) {
    SelectedStep<T>(optimizer, hyper, clip, gradient, update, state).Run();
    state.step += 1;
    return;
  }
  const bool of_gradient = optimizer.moment_of == MomentOf::kGradient;
  if (!of_gradient) rate *= NormalizeUpdate(optimizer, hyper, update, state);
  if (optimizer.second_moment == SecondMoment::kFactored) CommitFactors(hyper, clip, gradient, state);
  const bool commits_moment = of_gradient && optimizer.second_moment == SecondMoment::kElementwise;
  ForEachBlock(gradient.size(), [&](size_t at, size_t n) {
    BasicUnitState<T> part = Part(optimizer, state, at, n);
    const std::span<const T> g = gradient.subspan(at, n);
    if (commits_moment) Stages<T>().commit_moment(n, hyper.beta2, clip, g.data(), part.second_moment.data());
    CommitMomentum(optimizer, hyper, clip, g, part);
    MoveWeight<T>(optimizer, decay, rate, update.subspan(at, n), part.weight);
  });
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
