// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A disk in memory that knows what a crash would leave of it. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/checkpoint/files.h"

namespace dmuon::checkpoint {

class MemoryFiles : public Files {
 public:
  // What of everything that was not synced, contents and names, a crash takes.
  enum class Loss {
    kNothing,  // only the process dies
    kAll,
    kSome,  // by chance, each for itself; of a content also the end alone
  };
  struct Node;  // a file or a folder

  MemoryFiles();
  int OpenRoot(const std::string& path, std::unique_ptr<Folder>& root) override;

  void Crash(Loss loss, uint64_t seed);
  // Of the folder `name` in the root; sorted.
  [[nodiscard]] std::vector<std::string> NamesIn(const std::string& name) const;
  // Of a file in it, to be changed by the test.
  std::string& Content(const std::string& folder, const std::string& file);

  int64_t free_bytes = int64_t{1} << 30;

 private:
  std::shared_ptr<Node> root_;
  int64_t clock_ = 0;  // of changes
};

}  // namespace dmuon::checkpoint
