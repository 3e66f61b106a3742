// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

namespace dmuon::kernels {

// The processor's model as the system names it; "unknown processor" where it does not.
std::string ProcessorModel();

}  // namespace dmuon::kernels
