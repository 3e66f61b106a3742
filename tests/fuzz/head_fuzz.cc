// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Any file has the head of a part or is an error; a head comes back from its own bytes, and its values fill the file.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/checkpoint/head.h"

using dmuon::checkpoint::Head;
using dmuon::checkpoint::kLengthBytes;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  if (file.size() < kLengthBytes) return 0;
  const absl::StatusOr<uint64_t> bytes = dmuon::checkpoint::HeadBytes(file.first<kLengthBytes>(), file.size());
  if (!bytes.ok()) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data), *bytes);
  const absl::StatusOr<Head> head = dmuon::checkpoint::ParseHead(text, size);
  if (!head.ok()) {
    if (!absl::IsDataLoss(head.status()) && !absl::IsFailedPrecondition(head.status())) std::abort();
    return 0;
  }
  uint64_t values = 0;
  for (const dmuon::checkpoint::Entry& entry : head->entries) values += entry.elements() * sizeof(float);
  if (*bytes + values != size) std::abort();
  const absl::StatusOr<std::string> made = dmuon::checkpoint::MakeHead(*head);
  if (!made.ok()) std::abort();
  const absl::StatusOr<Head> again = dmuon::checkpoint::ParseHead(*made, made->size() + values);
  if (!again.ok() || *again != *head) std::abort();
  return 0;
}
