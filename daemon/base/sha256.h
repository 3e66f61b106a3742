// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// SHA-256 of a sequence of byte strings.
#pragma once

#include <span>
#include <string>

namespace dmuon {

// Lower-case hex. Each part enters as its length (8 bytes, little-endian) and its bytes, so that no
// two different sequences hash the same input.
std::string Sha256Hex(std::span<const std::string> parts);

}  // namespace dmuon
