// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::wire {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Refused(absl::string_view message) {
  return absl::FailedPreconditionError(
      absl::StrCat("arena refused: ", message));
}

absl::Status OutOfMemory(uint64_t bytes, absl::string_view call) {
  return Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
               absl::StrCat("no memory for an arena of ", bytes, " bytes: ", call,
                            ": ", std::strerror(errno)));
}

// Adds `bytes`, aligned, to `total`; false on overflow.
bool Place(uint64_t bytes, uint64_t& total, ArenaLayout::Piece& piece) {
  piece = {total, bytes};
  uint64_t padded = 0;
  if (__builtin_add_overflow(bytes, kArenaAlignment - 1, &padded)) return false;
  padded -= padded % kArenaAlignment;
  return !__builtin_add_overflow(total, padded, &total);
}

std::byte* MapShared(int fd, uint64_t bytes) {
  void* base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (base == MAP_FAILED) return nullptr;
  ::madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

void WriteTable(std::byte* base, const ArenaLayout& layout, uint64_t generation) {
  ArenaHeader& header = *new (base) ArenaHeader{};
  header.magic = kArenaMagic;
  header.version = kArenaVersion;
  header.entry_bytes = sizeof(ArenaEntry);
  header.tensor_count = layout.grads.size();
  header.total_bytes = layout.total_bytes;
  header.generation = generation;
  for (size_t i = 0; i < layout.grads.size(); ++i) {
    auto* entry = new (base + sizeof(ArenaHeader) + i * sizeof(ArenaEntry)) ArenaEntry{};
    entry->grad_offset = layout.grads[i].offset;
    entry->grad_bytes = layout.grads[i].bytes;
    entry->param_offset = layout.params[i].offset;
    entry->param_bytes = layout.params[i].bytes;
  }
}

// A peer of another build could lay out differently; then every byte would be wrong.
absl::Status CheckTable(std::byte* base, const ArenaLayout& layout, uint64_t generation) {
  const ArenaHeader& header = HeaderAt(base);
  if (header.magic != kArenaMagic || header.version != kArenaVersion ||
      header.entry_bytes != sizeof(ArenaEntry)) {
    return Refused(absl::StrCat("header of version ", header.version, " with entries of ",
                                header.entry_bytes, " bytes; expected version ", kArenaVersion,
                                " and ", sizeof(ArenaEntry)));
  }
  if (header.tensor_count != layout.grads.size() || header.total_bytes != layout.total_bytes ||
      header.generation != generation) {
    return Refused(absl::StrCat("header says ", header.tensor_count, " tensors, ",
                                header.total_bytes, " bytes, generation ", header.generation,
                                "; expected ", layout.grads.size(), ", ", layout.total_bytes,
                                ", ", generation));
  }
  for (size_t i = 0; i < layout.grads.size(); ++i) {
    const ArenaEntry& entry = EntryAt(base, i);
    if (entry.grad_offset != layout.grads[i].offset ||
        entry.grad_bytes != layout.grads[i].bytes ||
        entry.param_offset != layout.params[i].offset ||
        entry.param_bytes != layout.params[i].bytes) {
      return Refused(absl::StrCat("table entry ", i, " places its tensor elsewhere"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ArenaHeader& HeaderAt(std::byte* base) {
  return *std::launder(reinterpret_cast<ArenaHeader*>(base));
}

ArenaEntry& EntryAt(std::byte* base, size_t tensor) {
  return *std::launder(
      reinterpret_cast<ArenaEntry*>(base + sizeof(ArenaHeader) + tensor * sizeof(ArenaEntry)));
}

absl::StatusOr<ArenaLayout> LayOut(const v1::JobSpec& job, std::span<const ShardBoxes> shards,
                                   uint64_t max_bytes) {
  ArenaLayout layout;
  layout.grads.resize(shards.size());
  layout.params.resize(shards.size());
  uint64_t total = sizeof(ArenaHeader) + shards.size() * sizeof(ArenaEntry);
  bool fits = true;
  for (size_t i = 0; i < shards.size(); ++i) {
    const v1::Tensor& tensor = job.tensors(static_cast<int>(i));
    const auto grad_bytes =
        static_cast<uint64_t>(shards[i].grad.elements()) * SizeOf(tensor.grad_dtype());
    const auto param_bytes =
        static_cast<uint64_t>(shards[i].param.elements()) * SizeOf(tensor.param_dtype());
    fits = fits && Place(grad_bytes, total, layout.grads[i]) &&
           Place(param_bytes, total, layout.params[i]);
  }
  if (!fits || total > max_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                 absl::StrCat("the arena of this worker needs ",
                              fits ? absl::StrCat(total) : "more than 2^64",
                              " bytes, allowed are ", max_bytes));
  }
  layout.total_bytes = total;
  return layout;
}

absl::StatusOr<Arena> Arena::Create(const ArenaLayout& layout, uint64_t generation) {
  ScopedFd fd(::memfd_create("dmuon-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return OutOfMemory(layout.total_bytes, "memfd_create");
  const auto size = static_cast<off_t>(layout.total_bytes);
  if (::ftruncate(fd.get(), size) != 0) return OutOfMemory(layout.total_bytes, "ftruncate");
  // Takes the pages now: touching a page that cannot be had would be a SIGBUS later.
  if (const int error = ::posix_fallocate(fd.get(), 0, size); error != 0) {
    errno = error;
    return OutOfMemory(layout.total_bytes, "fallocate");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return OutOfMemory(layout.total_bytes, "seal");
  std::byte* base = MapShared(fd.get(), layout.total_bytes);
  if (base == nullptr) return OutOfMemory(layout.total_bytes, "mmap");
  WriteTable(base, layout, generation);
  return Arena(std::move(fd), base, layout);
}

absl::StatusOr<Arena> Arena::Map(ScopedFd fd, const ArenaLayout& layout, uint64_t generation) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return Refused("the descriptor is no memfd");
  if ((seals & kSeals) != kSeals) {
    return Refused("the memfd is not sealed against shrinking and growing");
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_size != static_cast<off_t>(layout.total_bytes)) {
    return Refused(absl::StrCat("the memfd has ", static_cast<int64_t>(info.st_size),
                                " bytes, expected ", layout.total_bytes));
  }
  std::byte* base = MapShared(fd.get(), layout.total_bytes);
  if (base == nullptr) return OutOfMemory(layout.total_bytes, "mmap");
  Arena arena(std::move(fd), base, layout);
  DMUON_RETURN_IF_ERROR(CheckTable(base, layout, generation));
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      layout_(std::move(other.layout_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    if (base_ != nullptr) ::munmap(base_, layout_.total_bytes);
    fd_ = std::move(other.fd_);
    base_ = std::exchange(other.base_, nullptr);
    layout_ = std::move(other.layout_);
  }
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) ::munmap(base_, layout_.total_bytes);
}

std::span<std::byte> Arena::grad(size_t tensor) const {
  return {base_ + layout_.grads[tensor].offset, layout_.grads[tensor].bytes};
}

void Arena::MarkGradient(size_t tensor, uint64_t step, WordState state) const {
  std::atomic<uint64_t>& word = entry(tensor).grad_word;
  if (WordStep(word.load(std::memory_order_relaxed)) == step) {
    header().resubmissions.fetch_add(1, std::memory_order_acq_rel);
  }
  word.store(MakeWord(step, state), std::memory_order_release);
}

std::span<std::byte> Arena::param(size_t tensor) const {
  return {base_ + layout_.params[tensor].offset, layout_.params[tensor].bytes};
}

}  // namespace dmuon::wire
