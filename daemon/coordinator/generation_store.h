// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Keeps the highest generation that may have been given out, so that a restarted coordinator never
// gives one out twice.
//
//   file := decimal digits "\n"
//
// A new number is written to a temporary file, synced and renamed, and the directory synced, before
// it is used. One thread at a time; one process a file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "wire/scoped_fd.h"

namespace dmuon::coordinator {

class GenerationStore {
 public:
  // Memory only: numbers live as long as the process. For a coordinator whose nodes live in the
  // same process, and for tests.
  GenerationStore() = default;
  // `directory` is made (one level, mode 0700) when it is missing; the file in it is "generation". A missing file means 0. DATA_LOSS
  // naming file and content when it is damaged: starting over could reuse a generation.
  // FAILED_PRECONDITION when another process has the directory; UNAVAILABLE naming the path when it
  // cannot be used.
  static absl::StatusOr<GenerationStore> Open(const std::string& directory);

  [[nodiscard]] uint64_t highest() const { return highest_; }
  // Afterwards highest() >= generation, on disk too. On an error nothing changed, and the caller
  // must not give the generation out.
  absl::Status Reserve(uint64_t generation);

 private:
  std::string directory_;  // empty: memory only
  uint64_t highest_ = 0;
  wire::ScopedFd lock_;  // holds an flock on the directory's lock file
};

}  // namespace dmuon::coordinator
