// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/image.h"

#include <sys/mman.h>

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

}  // namespace

struct Image::Memory {
  Memory(void* at, uint64_t count) : base(static_cast<std::byte*>(at)), bytes(count) {}
  ~Memory() {
    if (bytes > 0) ::munmap(base, bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* const base;
  const uint64_t bytes;
  std::vector<uint64_t> offsets;  // of each entry's values
};

uint64_t Image::BytesFor(std::span<const Entry> entries) {
  uint64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.elements() * sizeof(float);
  return bytes;
}

absl::StatusOr<Image> Image::Create(std::vector<Entry> entries, std::shared_ptr<Memory> former) {
  std::unordered_set<std::string> keys;
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;
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
  if (former != nullptr && former->bytes == bytes && former.use_count() == 1) {
    former->offsets = std::move(offsets);
    return Image(std::move(entries), std::move(former));
  }
  void* base = nullptr;
  if (bytes > 0) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      return wire::Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT,
                         absl::StrCat("no memory for a checkpoint of ", bytes, " bytes: ", std::strerror(errno)));
    }
    // Both are advice, so that it does not matter when it is not taken.
    if (bytes >= kHugePage) ::madvise(base, bytes, MADV_HUGEPAGE);
    ::madvise(base, bytes, MADV_DONTDUMP);
  }
  auto memory = std::make_shared<Memory>(base, bytes);
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
  if (memory_ != nullptr && memory_->bytes > 0) ::madvise(memory_->base, memory_->bytes, MADV_FREE);
}

const std::vector<Entry>& Image::entries() const { return entries_; }

std::span<float> Image::values(size_t i) {
  return {reinterpret_cast<float*>(memory_->base + memory_->offsets[i]), entries_[i].elements()};
}

std::span<const float> Image::values(size_t i) const { return const_cast<Image*>(this)->values(i); }

std::shared_ptr<Image::Memory> Image::memory() const { return memory_; }

std::span<const std::byte> Image::data() const { return {memory_->base, memory_->bytes}; }

}  // namespace dmuon::checkpoint
