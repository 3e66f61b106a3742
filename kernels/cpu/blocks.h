// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// How work on elements is cut: into blocks, which one call of a loop gets, and grains of blocks, which one thread of
// a team gets. Only the size decides where the cuts are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/team.h"

namespace dmuon::kernels {

// 256 KiB of fp32: takes longer than waking a thread. What is not larger stays on the calling thread.
inline constexpr size_t kGrain = 32 * kBlock;

inline size_t Grains(size_t elements) { return (elements + kGrain - 1) / kGrain; }

// Calls work(at, count) for the blocks of [begin, end), in rising order.
template <class Work>
void WalkBlocks(size_t begin, size_t end, const Work& work) {
  for (size_t at = begin; at < end; at += kBlock) work(at, std::min(kBlock, end - at));
}

// The same for all elements, grains in any order, by the calling thread's team.
template <class Work>
void ForEachBlock(size_t elements, const Work& work) {
  ForEach(Grains(elements), [&](size_t grain) {
    WalkBlocks(grain * kGrain, std::min(elements, (grain + 1) * kGrain), work);
  });
}

// Calls work(row) for each row of `cols` elements, several of short rows in one grain.
template <class Work>
void ForEachRow(int64_t rows, int64_t cols, const Work& work) {
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kGrain) / std::max<int64_t>(cols, 1));
  ForEach(static_cast<size_t>((rows + grain - 1) / grain), [&](size_t i) {
    const int64_t first = static_cast<int64_t>(i) * grain;
    for (int64_t row = first; row < std::min(rows, first + grain); ++row) work(row);
  });
}

}  // namespace dmuon::kernels
