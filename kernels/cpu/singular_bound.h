// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Whether a result can be one of Newton-Schulz.
#pragma once

#include "kernels/backend.h"

namespace dmuon::kernels {

// The largest singular value that the polynomials give to any of [0, 1].
double LargestSingularValue(const NewtonSchulz& newton_schulz);

// True when no element is NaN or infinite, and the largest singular value, as a few power iterations from a
// fixed vector find it, is at most 1.25 times what the polynomials can give. What rounding adds to a sound
// result stays below that; a result that has diverged is beyond it by factors.
bool WithinSingularBound(const NewtonSchulz& newton_schulz, MatrixView x);

}  // namespace dmuon::kernels
