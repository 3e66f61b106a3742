// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace dmuon {

// SHA-256 of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256();
  void Update(std::span<const std::byte> bytes);
  // Lower-case hex. Once, and nothing after it.
  std::string Hex();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;  // OpenSSL's
};

// SHA-256 of a sequence of byte strings, in lower-case hex. Each part enters as its length (8 bytes, little-endian) and its bytes, so that no
// two different sequences hash the same input.
std::string Sha256Hex(std::span<const std::string> parts);

}  // namespace dmuon
