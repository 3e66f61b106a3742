// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <memory>

namespace dmuon {

std::string Sha256Hex(std::span<const std::string> parts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const std::string& part : parts) {
    std::array<uint8_t, 8> length{};
    for (size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<uint8_t>(static_cast<uint64_t>(part.size()) >> (8 * i));
    }
    EVP_DigestUpdate(context.get(), length.data(), length.size());
    EVP_DigestUpdate(context.get(), part.data(), part.size());
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int bytes = 0;
  EVP_DigestFinal_ex(context.get(), hash.data(), &bytes);
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < bytes; ++i) {
    text.push_back(kHex[hash[i] >> 4]);
    text.push_back(kHex[hash[i] & 15]);
  }
  return text;
}

}  // namespace dmuon
