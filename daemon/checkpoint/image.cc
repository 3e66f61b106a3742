// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::checkpoint {
namespace {

// As the kernels ask for their memory: below it huge pages save nothing.
constexpr uint64_t kHugePage = uint64_t{2} << 20;

absl::Status NoMemory(uint64_t bytes, int error) {
  return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                     absl::StrCat("no memory for a checkpoint of ", bytes, " bytes: ", std::strerror(error)));
}

// Where the values of each entry lie, and their end.
absl::StatusOr<std::vector<uint64_t>> OffsetsOf(std::span<const Entry> entries, uint64_t& bytes) {
  std::unordered_set<std::string> keys;
  std::vector<uint64_t> offsets;
  for (const Entry& entry : entries) {
    DMUON_RETURN_IF_ERROR(ValidateEntry(entry));
    if (std::string key = entry.Key(); !keys.insert(key).second) {
      return wire::InvalidField(absl::StrCat("two arrays of a checkpoint are called ", key));
    }
    offsets.push_back(bytes);
    if (__builtin_add_overflow(bytes, entry.elements() * sizeof(float), &bytes)) {
      return wire::InvalidField(absl::StrCat("the arrays up to ", entry.Key(), " do not fit a 64-bit count of bytes"));
    }
  }
  return offsets;
}

}  // namespace

struct Image::Memory {
  Memory(void* at, uint64_t head, uint64_t count, wire::ScopedFd shared_by)
      : base(static_cast<std::byte*>(at) + head), bytes(count), head_bytes(head), fd(std::move(shared_by)) {}
  ~Memory() {
    if (head_bytes + bytes > 0) ::munmap(base - head_bytes, head_bytes + bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* const base;  // of the values
  const uint64_t bytes;
  const uint64_t head_bytes;      // before them
  wire::ScopedFd fd;              // of a memfd; else the memory is this process's
  std::vector<uint64_t> offsets;  // of each entry's values
};

uint64_t Image::BytesFor(std::span<const Entry> entries) {
  uint64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.elements() * sizeof(float);
  return bytes;
}

absl::StatusOr<Image> Image::Create(std::vector<Entry> entries, std::shared_ptr<Memory> former) {
  uint64_t bytes = 0;
  DMUON_ASSIGN_OR_RETURN(std::vector<uint64_t> offsets, OffsetsOf(entries, bytes));
  if (former != nullptr && former->bytes == bytes && former.use_count() == 1) {
    former->offsets = std::move(offsets);
    return Image(std::move(entries), std::move(former));
  }
  void* base = nullptr;
  if (bytes > 0) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NoMemory(bytes, errno);
    // Both are advice, so that it does not matter when it is not taken.
    if (bytes >= kHugePage) ::madvise(base, bytes, MADV_HUGEPAGE);
    ::madvise(base, bytes, MADV_DONTDUMP);
  }
  auto memory = std::make_shared<Memory>(base, 0, bytes, wire::ScopedFd());
  memory->offsets = std::move(offsets);
  return Image(std::move(entries), std::move(memory));
}

absl::StatusOr<Image> Image::CreateShared(std::vector<Entry> entries, uint64_t head_bytes) {
  uint64_t bytes = 0;
  DMUON_ASSIGN_OR_RETURN(std::vector<uint64_t> offsets, OffsetsOf(entries, bytes));
  const uint64_t total = head_bytes + bytes;
  wire::ScopedFd fd(::memfd_create("dmuon-state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(total)) != 0) return NoMemory(total, errno);
  // Takes the pages now: touching a page that cannot be had would be a SIGBUS later.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(total)); error != 0) return NoMemory(total, error);
  void* base = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return NoMemory(total, errno);
  ::madvise(base, total, MADV_DONTDUMP);
  auto memory = std::make_shared<Memory>(base, head_bytes, bytes, std::move(fd));
  memory->offsets = std::move(offsets);
  return Image(std::move(entries), std::move(memory));
}

Image::Image(std::vector<Entry> entries, std::shared_ptr<Memory> memory)
    : entries_(std::move(entries)), memory_(std::move(memory)) {}
Image::Image(Image&&) noexcept = default;
Image& Image::operator=(Image&& other) noexcept {
  std::swap(entries_, other.entries_);
  std::swap(memory_, other.memory_);
  return *this;
}
// Whoever keeps the memory lends its pages to the kernel: new ones cost more than what is copied into them.
Image::~Image() {
  if (memory_ != nullptr && memory_->bytes > 0 && !memory_->fd.valid()) ::madvise(memory_->base, memory_->bytes, MADV_FREE);
}

const std::vector<Entry>& Image::entries() const { return entries_; }

std::span<float> Image::values(size_t i) {
  return {reinterpret_cast<float*>(memory_->base + memory_->offsets[i]), entries_[i].elements()};
}

std::span<const float> Image::values(size_t i) const { return const_cast<Image*>(this)->values(i); }

std::shared_ptr<Image::Memory> Image::memory() const { return memory_; }

std::span<const std::byte> Image::data() const { return {memory_->base, memory_->bytes}; }

absl::StatusOr<wire::ScopedFd> Image::Seal(absl::string_view head) && {
  if (!memory_->fd.valid() || head.size() != memory_->head_bytes) {
    return absl::InternalError(absl::StrCat("a head of ", head.size(), " bytes for an image with room for ", memory_->head_bytes));
  }
  std::memcpy(memory_->base - memory_->head_bytes, head.data(), head.size());
  wire::ScopedFd fd = std::move(memory_->fd);
  memory_.reset();  // a seal against writing needs all mappings gone that could
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return absl::InternalError(absl::StrCat("a memfd cannot be sealed: ", std::strerror(errno)));
  }
  return fd;
}

}  // namespace dmuon::checkpoint
