// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/stages.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/newton_schulz.h"
#include "kernels/cuda/stage_kernels.h"
#include "kernels/stage_factors.h"

namespace dmuon::kernels::cuda {
namespace {

bool DividesMomentum(const Optimizer& optimizer, SecondMoment moment) {
  return optimizer.second_moment == moment && optimizer.moment_of == MomentOf::kGradient;
}

// -- before Newton-Schulz --------------------------------------------------------------------------

// Factors of element-wise stages, without addresses. Nesterov is the plain form with the momentum stage applied
// once more to the same gradient.
DirectionArgs DirectionFactors(const Optimizer& optimizer, const Hyper& hyper, double clip, int64_t step) {
  const auto [own, slow] = AccelerationOf(optimizer, clip, step);
  const auto [keep, take] = MomentumOf(optimizer, hyper);
  const double of_gradient = optimizer.nesterov ? take + keep * take : take;
  DirectionArgs args{};
  args.of_gradient = of_gradient * own;
  args.of_momentum = optimizer.nesterov ? keep * keep : keep;
  args.of_slow = of_gradient * slow;
  args.clip = clip;
  args.beta2 = hyper.beta2;
  args.eps = optimizer.second_moment_eps;
  return args;
}

FactoredArgs Factored(const Optimizer& optimizer, const Hyper& hyper, double clip, const float* gradient,
                      const UnitState& state, Stream& stream) {
  return {.rows = state.rows,
          .cols = state.cols,
          .clip = clip,
          .beta2 = hyper.beta2,
          .eps = optimizer.second_moment_eps,
          .gradient = gradient,
          .row_moment = nullptr,
          .column_moment = nullptr,
          .next = stream.Get<double>(Slot::kRowVector, static_cast<size_t>(state.rows + state.cols))};
}

void DivideByFactors(FactoredArgs args, bool sign, const UnitState& state, float* update, Stream& stream,
                     Staging& staging) {
  args.row_moment = staging.Read(std::span<const float>(state.second_moment));
  args.column_moment = staging.Read(std::span<const float>(state.column_moment));
  auto* partials = stream.Get<double>(Slot::kPartials, kPartialStats);
  auto* total = stream.Get<double>(Slot::kResult, 1);
  stream.Do("NextFactors", [&](cudaStream_t on) { return NextFactors(on, args); });
  stream.Do("DivideByFactors", [&](cudaStream_t on) {
    return cuda::DivideByFactors(on, args, sign, partials, total, update);
  });
}

// The basis, between the state and what lies behind the update, wherever both lie.
void CopyBehind(std::span<const float> from, std::span<float> to, Stream& stream) {
  stream.Copy(to.data(), from.data(), from.size_bytes());
}

// -- selection -------------------------------------------------------------------------------------

// The selected lines: sums on the device, the choice on the host.
SelectionArgs Select(const Optimizer& optimizer, double clip, const float* gradient, const float* momentum,
                     const UnitState& state, Stream& stream) {
  const bool of_rows = state.rows <= state.cols;
  const auto lines = static_cast<size_t>(of_rows ? state.rows : state.cols);
  auto* sums = stream.Get<double>(Slot::kRowVector, lines);
  stream.Do("LineSums", [&](cudaStream_t on) {
    return LineSums(on, state.rows, state.cols, of_rows, clip, gradient, momentum, sums);
  });
  const std::vector<int64_t> selected = LargestLines(optimizer, stream.Read(sums, lines));
  std::vector<int64_t> positions(lines, -1);
  for (size_t k = 0; k < selected.size(); ++k) positions[static_cast<size_t>(selected[k])] = static_cast<int64_t>(k);
  auto* device = stream.Get<int64_t>(Slot::kLines, 2 * lines);
  stream.Upload(device, positions);
  stream.Upload(device + lines, selected);
  return {.rows = state.rows, .cols = state.cols, .of_rows = of_rows,
          .selected = static_cast<int64_t>(selected.size()), .lines = device + lines, .positions = device};
}

MatrixShape SelectedShape(const SelectionArgs& selection) {
  return selection.of_rows ? MatrixShape{selection.selected, selection.cols}
                           : MatrixShape{selection.rows, selection.selected};
}

// -- after it --------------------------------------------------------------------------------------

double FrobeniusNorm(Stream& stream, const float* values, size_t count) {
  return std::sqrt(MeasureOnDevice(stream, values, static_cast<int64_t>(count)).sum_squares);
}

// Commits the second moment of the update and divides the update by it; returns the factor that gives it the
// size which `rescale` says.
double NormalizeUpdate(const Optimizer& optimizer, const Hyper& hyper, float* update, UnitState& state, Stream& stream,
                       Staging& staging) {
  const size_t count = state.weight.size();
  const double before = FrobeniusNorm(stream, update, count);
  const NormalizeArgs args{.rows = state.rows, .cols = state.cols, .beta2 = hyper.beta2,
                           .eps = optimizer.second_moment_eps, .second_moment = staging.Update(state.second_moment),
                           .update = update};
  const bool by_rows = optimizer.second_moment == SecondMoment::kRows;
  stream.Do(by_rows ? "NormalizeRows" : "NormalizeElements",
            [&](cudaStream_t on) { return by_rows ? NormalizeRows(on, args) : NormalizeElements(on, args); });
  return RescaleFactor(optimizer, before, FrobeniusNorm(stream, update, count), count);
}

void CommitFactored(FactoredArgs args, UnitState& state, Stream& stream, Staging& staging) {
  float* rows = staging.Update(state.second_moment);
  float* columns = staging.Update(state.column_moment);
  args.row_moment = rows;
  args.column_moment = columns;
  stream.Do("NextFactors", [&](cudaStream_t on) { return NextFactors(on, args); });
  stream.Do("CommitFactors", [&](cudaStream_t on) {
    return CommitFactors(on, args.rows, args.cols, args.next, rows, columns);
  });
}

// Factors of what is committed, and the addresses that every optimizer has.
CommitArgs CommitFactorsOf(const Optimizer& optimizer, const Hyper& hyper, double clip, UnitState& state,
                           Staging& staging) {
  const auto [own, slow] = AccelerationOf(optimizer, clip, state.step);
  const auto [keep, take] = MomentumOf(optimizer, hyper);
  CommitArgs args{};
  args.count = static_cast<int64_t>(state.weight.size());
  args.clip = clip;
  args.beta2 = hyper.beta2;
  args.keep = keep;
  args.of_gradient = take * own;
  args.of_slow = take * slow;
  args.slow_keep = state.step == 0 ? 0.0 : optimizer.slow_beta;
  args.slow_take = (1.0 - args.slow_keep) * clip;
  args.decay = 1.0 - hyper.lr * hyper.weight_decay;
  args.rate = hyper.lr * Scale(optimizer.scale, state.rows, state.cols);
  args.cautious = optimizer.weight_decay == WeightDecay::kCautious;
  args.momentum = staging.Update(state.momentum);
  args.weight = staging.Update(state.weight);
  return args;
}

void ApplyAdam(const Optimizer& optimizer, const Hyper& hyper, double clip, const float* gradient, UnitState& state,
               Stream& stream, Staging& staging) {
  const AdamFactors f = AdamOf(optimizer, hyper, state.step);
  const AdamArgs args{.count = static_cast<int64_t>(state.weight.size()), .clip = clip, .beta1 = f.beta1,
                      .beta2 = f.beta2, .decay = f.decay, .rate = f.rate, .inverse_root = f.inverse_root, .eps = f.eps,
                      .cautious = f.cautious, .gradient = gradient, .momentum = staging.Update(state.momentum),
                      .second_moment = staging.Update(state.second_moment), .weight = staging.Update(state.weight)};
  stream.Do("Adam", [&](cudaStream_t on) { return Adam(on, args); });
}

}  // namespace

MatrixShape MakeDirection(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
                          const UnitState& state, std::span<float> update, Stream& stream, Staging& staging) {
  CopyBehind(state.basis, update.subspan(gradient.size()), stream);
  update = update.first(gradient.size());
  DirectionArgs args = DirectionFactors(optimizer, hyper, clip, state.step);
  args.count = static_cast<int64_t>(update.size());
  args.gradient = staging.Read(gradient);
  args.momentum = staging.Read(std::span<const float>(state.momentum));
  if (optimizer.selects()) {
    const SelectionArgs selection = Select(optimizer, clip, args.gradient, args.momentum, state, stream);
    const MatrixShape shape = SelectedShape(selection);
    float* selected = staging.Write(update.first(static_cast<size_t>(shape.rows * shape.cols)));
    stream.Do("SelectDirection", [&](cudaStream_t on) {
      return SelectDirection(on, selection, clip, args.gradient, args.momentum, selected);
    });
    return shape;
  }
  args.update = staging.Write(update);
  if (args.of_slow != 0.0) args.slow_gradient = staging.Read(std::span<const float>(state.slow_gradient));
  if (DividesMomentum(optimizer, SecondMoment::kElementwise)) {
    args.second_moment = staging.Read(std::span<const float>(state.second_moment));
  }
  const bool factored = DividesMomentum(optimizer, SecondMoment::kFactored);
  args.sign = optimizer.sign && !factored;
  stream.Do("Direction", [&](cudaStream_t on) { return Direction(on, args); });
  if (factored) {
    DivideByFactors(Factored(optimizer, hyper, clip, args.gradient, state, stream), optimizer.sign, state, args.update,
                    stream, staging);
  }
  return {state.rows, state.cols};
}

void ApplyStep(const Optimizer& optimizer, const Hyper& hyper, double clip, std::span<const float> gradient,
               std::span<float> update, UnitState& state, Stream& stream, Staging& staging) {
  const float* device_gradient = staging.Read(gradient);
  if (!optimizer.needs_whole_matrix()) {
    state.step += 1;  // first: bias correction counts this update
    ApplyAdam(optimizer, hyper, clip, device_gradient, state, stream, staging);
    return;
  }
  CopyBehind(update.subspan(gradient.size()), state.basis, stream);
  update = update.first(gradient.size());
  CommitArgs args = CommitFactorsOf(optimizer, hyper, clip, state, staging);
  args.gradient = device_gradient;
  if (optimizer.selects()) {
    const SelectionArgs selection = Select(optimizer, clip, device_gradient, args.momentum, state, stream);
    const MatrixShape shape = SelectedShape(selection);
    args.update = staging.Consume(update.first(static_cast<size_t>(shape.rows * shape.cols)));
    stream.Do("CommitSelected",
              [&](cudaStream_t on) { return CommitSelected(on, args, selection, hyper.momentum); });
  } else {
    float* device_update = staging.Consume(update);
    args.update = device_update;
    if (optimizer.moment_of == MomentOf::kUpdate) {
      args.rate *= NormalizeUpdate(optimizer, hyper, device_update, state, stream, staging);
    }
    if (DividesMomentum(optimizer, SecondMoment::kFactored)) {
      CommitFactored(Factored(optimizer, hyper, clip, device_gradient, state, stream), state, stream, staging);
    }
    if (DividesMomentum(optimizer, SecondMoment::kElementwise)) args.second_moment = staging.Update(state.second_moment);
    if (optimizer.accelerates()) args.slow_gradient = staging.Update(state.slow_gradient);
    stream.Do("Commit", [&](cudaStream_t on) { return Commit(on, args); });
  }
  state.step += 1;
}

}  // namespace dmuon::kernels::cuda
