// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A part that is on no disk: it lies in a memfd, by which one process of this host gives state to another. The bytes are
// those of a file (head.h). Whoever gets one believes nothing of it that is not proved.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/checkpoint/entry.h"
#include "daemon/checkpoint/head.h"
#include "daemon/checkpoint/image.h"
#include "daemon/checkpoint/part_file.h"
#include "wire/scoped_fd.h"

namespace dmuon::checkpoint {

struct SharedPart {
  wire::ScopedFd fd;   // of a memfd that nobody can change any more
  uint64_t bytes = 0;  // of it
};

// An image with room for the head that `head`, which has neither entries nor checksums yet, will be. RESOURCE_EXHAUSTED.
absl::StatusOr<Image> CreateSharedImage(Head head, std::vector<Entry> entries);
// Checksums the values of such an image, which are filled in, and puts the head before them.
absl::StatusOr<SharedPart> SealPart(Head head, Image image);

// What errors call it.
inline constexpr char kReceived[] = "the state that a worker has brought";

// A part that somebody else has made, and says to have a head of this SHA-256. INVALID_ARGUMENT unless it is a memfd of at
// most `max_bytes` that is sealed against shrinking, growing and writing; DATA_LOSS as of a file.
absl::StatusOr<std::unique_ptr<DiskPart>> OpenReceived(wire::ScopedFd fd, uint64_t max_bytes, absl::string_view sha256);

}  // namespace dmuon::checkpoint
