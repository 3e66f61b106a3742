// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstdint>

namespace dmuon {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), EVP_sha256(), nullptr);
}

void Sha256::Free::operator()(void* context) const { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context)); }

void Sha256::Update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

std::string Sha256::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int bytes = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), hash.data(), &bytes);
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < bytes; ++i) {
    text.push_back(kHex[hash[i] >> 4]);
    text.push_back(kHex[hash[i] & 15]);
  }
  return text;
}

std::string Sha256Hex(std::span<const std::string> parts) {
  Sha256 hash;
  for (const std::string& part : parts) {
    std::array<uint8_t, 8> length{};
    for (size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<uint8_t>(static_cast<uint64_t>(part.size()) >> (8 * i));
    }
    hash.Update(std::as_bytes(std::span(length)));
    hash.Update(std::as_bytes(std::span(part)));
  }
  return hash.Hex();
}

}  // namespace dmuon
