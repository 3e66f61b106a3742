// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The arena: memory that one worker and its daemon both map. The daemon allocates it (a sealed
// memfd: neither side can shrink it under the other) and passes the descriptor; gradients and
// parameters lie in it, and one word a tensor and direction says which step they belong to.
//
//   arena  := header entry[tensor_count] pad payload
//   header := magic:u64 version:u32 entry_bytes:u32 tensor_count:u64 total_bytes:u64 generation:u64
//             answer_word answer resubmissions:u64 pad
//   entry  := grad_word:u64 param_word grad_offset:u64 grad_bytes:u64 param_offset:u64 param_bytes:u64 pad
//   words: step_word.h
//
// All numbers in native byte order; header 128 bytes, entry 64 bytes, every payload piece aligned to
// 64. A tensor's pieces are the worker's grad_box and param_box, row-major, in their dtypes.
//
// The worker fills a gradient, then stores its word (release); the daemon loads the word (acquire)
// before it reads. The daemon fills a parameter, then stores its word; the worker loads it first. So
// parameters arrive one by one; when all have, and the step is done on every node, the answer is
// filled in and its word stored. "Missing" there means that the answer to the RPC says more.
// The daemon may read a gradient as soon as its word is set, before the step is called for. A worker that
// sets a word to a step that it had been set to before counts it in `resubmissions` first.
// The daemon trusts nothing in the arena but the bytes of gradients: offsets and sizes it takes from
// its own ArenaLayout, and a word only ever tells it "ready for step k" or "missing in step k".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "dmuon/v1/tensor.pb.h"
#include "wire/scoped_fd.h"
#include "wire/step_word.h"
#include "wire/validate.h"

namespace dmuon::wire {

inline constexpr uint64_t kArenaMagic = 0x314E4F554D44ULL;  // "DMUON1"
inline constexpr uint32_t kArenaVersion = 3;
inline constexpr size_t kArenaAlignment = 64;

// What became of an applied step; the fields of v1.StepResponse of the same names.
struct StepAnswer {
  double grad_norm = 0.0;
  double clip = 1.0;
  uint64_t newton_schulz_calls = 0;
  double service_seconds = 0.0;
};

struct ArenaHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t entry_bytes;
  uint64_t tensor_count;
  uint64_t total_bytes;
  uint64_t generation;
  WaitableWord answer_word;  // the daemon's; the worker clears it before it starts a step
  StepAnswer answer;
  std::atomic<uint64_t> resubmissions;  // the worker's
  uint8_t pad[32];
};
static_assert(sizeof(ArenaHeader) == 128);

struct ArenaEntry {
  std::atomic<uint64_t> grad_word;
  WaitableWord param_word;
  uint64_t grad_offset;  // from the start of the arena
  uint64_t grad_bytes;
  uint64_t param_offset;
  uint64_t param_bytes;
  uint8_t pad[8];
};
static_assert(sizeof(ArenaEntry) == 64);

// The header and the table of an arena that is mapped at `base`.
ArenaHeader& HeaderAt(std::byte* base);
ArenaEntry& EntryAt(std::byte* base, size_t tensor);

// Where everything lies; computed by each side from the registration alone.
struct ArenaLayout {
  struct Piece {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<Piece> grads;   // one a tensor
  std::vector<Piece> params;  // one a tensor
  uint64_t total_bytes = 0;
};

// RESOURCE_EXHAUSTED when the arena would be larger than `max_bytes`.
absl::StatusOr<ArenaLayout> LayOut(const v1::JobSpec& job, std::span<const ShardBoxes> shards,
                                   uint64_t max_bytes);

// A mapped arena. Movable; unmaps on destruction. Spans and entries die with it.
class Arena {
 public:
  // Daemon: allocates (all pages, so that a full memory fails here and not at first touch), writes
  // header and table, seals. RESOURCE_EXHAUSTED when there is no memory.
  static absl::StatusOr<Arena> Create(const ArenaLayout& layout, uint64_t generation);
  // Worker: maps a received descriptor. FAILED_PRECONDITION when it is no memfd, not sealed against
  // shrinking and growing, of another size than `layout`, or of another header or table.
  static absl::StatusOr<Arena> Map(ScopedFd fd, const ArenaLayout& layout, uint64_t generation);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] uint64_t bytes() const { return layout_.total_bytes; }
  [[nodiscard]] bool mapped() const { return base_ != nullptr; }

  std::span<std::byte> grad(size_t tensor) const;
  std::span<std::byte> param(size_t tensor) const;
  ArenaHeader& header() const { return HeaderAt(base_); }
  ArenaEntry& entry(size_t tensor) const { return EntryAt(base_, tensor); }
  // Worker: the tensor's gradient is in place, or missing, for `step`.
  void MarkGradient(size_t tensor, uint64_t step, WordState state) const;

 private:
  Arena(ScopedFd fd, std::byte* base, ArenaLayout layout)
      : fd_(std::move(fd)), base_(base), layout_(std::move(layout)) {}

  ScopedFd fd_;
  std::byte* base_ = nullptr;
  ArenaLayout layout_;
};

}  // namespace dmuon::wire
