// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/training.h"

#include <bit>

#include "daemon/node/round.h"
#include "tests/sim/world.h"

namespace dmuon::sim {
namespace {

constexpr uint64_t kOneInThisManyIsNotFinite = 11;
constexpr uint32_t kBatchBits = 8;
constexpr uint64_t kLargest = 1000;  // element of a gradient, for its norm

}  // namespace

Digest DigestOf(const Values& values) {
  Digest digest = values.size();
  for (const Digest value : values) digest = Mix(digest, value);
  return digest;
}

Gradients Backward(const Values& params, uint32_t rank, uint64_t step, uint64_t batch) {
  const Digest whole = batch == 0 ? DigestOf(params) : Mix(DigestOf(params), batch);
  Gradients gradients(params.size());
  for (size_t unit = 0; unit < params.size(); ++unit) gradients[unit] = {Mix(whole, rank, step, unit), batch << (kBatchBits * rank)};
  const uint64_t chance = Mix(whole, rank, step, 0xbad);
  if (chance % kOneInThisManyIsNotFinite == 0) gradients[chance / 64 % params.size()].finite = false;
  return gradients;
}

Values InitialValues(size_t units, uint64_t start) {
  Values values(units);
  for (size_t unit = 0; unit < units; ++unit) values[unit] = Mix(start, unit, 0x1417);
  return values;
}

void Judge(const Gradient& gradient, v1::StepVerdict& verdict) {
  if (!gradient.finite) {
    verdict.set_skip(true);
    verdict.set_skip_reason("not finite");
  }
  verdict.set_sum_squares(verdict.sum_squares() + static_cast<double>(gradient.sum % kLargest));
}

Digest Applied(Digest master, const Gradient& gradient, const node::Verdict& verdict, uint64_t step) {
  return Mix(master, gradient.sum, std::bit_cast<uint64_t>(verdict.clip), step);
}

Values OracleStep(const v1::JobSpec& job, const Values& before, uint64_t step, uint64_t batches) {
  Gradients sums(before.size());
  for (uint32_t rank = 0; rank < job.world_size(); ++rank) {
    const uint64_t batch = batches >> (kBatchBits * rank) & ((1U << kBatchBits) - 1);
    const Gradients gradients = Backward(before, rank, step, batch);
    for (size_t unit = 0; unit < sums.size(); ++unit) sums[unit].Add(gradients[unit]);
  }
  v1::StepVerdict judged;
  for (const Gradient& sum : sums) Judge(sum, judged);
  if (judged.skip()) return before;
  const node::Verdict verdict = node::Conclude(job, judged);
  Values after(before.size());
  for (size_t unit = 0; unit < sums.size(); ++unit) after[unit] = Applied(before[unit], sums[unit], verdict, step);
  return after;
}

}  // namespace dmuon::sim
