// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Whether a result can be one of Newton-Schulz.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/backend.h"

namespace dmuon::kernels {

inline constexpr int kPowerIterations = 3;

// The largest singular value that the polynomials give to any of [0, 1].
double LargestSingularValue(const NewtonSchulz& newton_schulz);

// True when no element is NaN or infinite, and the largest singular value, as a few power iterations from a
// fixed vector find it, is at most 1.25 times what the polynomials can give. What rounding adds to a sound
// result stays below that; a result that has diverged is beyond it by factors.
bool WithinSingularBound(const NewtonSchulz& newton_schulz, MatrixView x);

// The same for a finite matrix that lies elsewhere. `grow` is one power iteration: v <- X^T X v, from v =
// PowerIterationStart(columns of X) on; it returns |X^T X v| / |v|.
// Called kPowerIterations times at most.
bool GrowthWithinBound(const NewtonSchulz& newton_schulz, const std::function<double()>& grow);
// A vector with a part in every direction.
std::vector<float> PowerIterationStart(size_t size);

}  // namespace dmuon::kernels
