// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::wire {

int64_t Box::elements() const {
  int64_t product = 1;
  for (int d = 0; d < ndim; ++d) product *= length[d];
  return product;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int d = 0; d < ndim; ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", offset[d], ":", offset[d] + length[d]);
  }
  return text + "]";
}

Box WholeBox(std::span<const int64_t> shape) {
  Box box;
  box.ndim = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), box.length.begin());
  return box;
}

absl::StatusOr<Box> ParseBox(const v1::Box& box, std::span<const int64_t> shape,
                             absl::string_view what) {
  const size_t ndim = shape.size();
  if (static_cast<size_t>(box.offset_size()) != ndim ||
      static_cast<size_t>(box.length_size()) != ndim) {
    return InvalidField(absl::StrCat(what, ": ", box.offset_size(), " offsets and ",
                                     box.length_size(), " lengths for a tensor of ", ndim,
                                     " dimensions"));
  }
  Box parsed;
  parsed.ndim = static_cast<int>(ndim);
  for (size_t d = 0; d < ndim; ++d) {
    const int64_t offset = box.offset(static_cast<int>(d));
    const int64_t length = box.length(static_cast<int>(d));
    // Written so that no sum can overflow.
    if (offset < 0 || length < 0 || offset > shape[d] || length > shape[d] - offset) {
      return InvalidField(absl::StrCat(what, ": offset ", offset, " and length ", length,
                                       " in dimension ", d, " reach outside 0..", shape[d]));
    }
    parsed.offset[d] = offset;
    parsed.length[d] = length;
  }
  return parsed;
}

v1::Box ToProto(const Box& box) {
  v1::Box proto;
  for (int d = 0; d < box.ndim; ++d) {
    proto.add_offset(box.offset[d]);
    proto.add_length(box.length[d]);
  }
  return proto;
}

Box FromProto(const v1::Box& box) {
  Box result;
  result.ndim = std::min(box.offset_size(), kMaxDims);
  for (int d = 0; d < result.ndim; ++d) {
    result.offset[static_cast<size_t>(d)] = box.offset(d);
    result.length[static_cast<size_t>(d)] = box.length(d);
  }
  return result;
}

Box Intersect(const Box& a, const Box& b) {
  Box shared;
  shared.ndim = a.ndim;
  for (int d = 0; d < a.ndim; ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.length[d], b.offset[d] + b.length[d]);
    shared.offset[d] = begin;
    shared.length[d] = std::max<int64_t>(0, end - begin);
  }
  return shared;
}

absl::StatusOr<int64_t> CheckedProduct(std::span<const int64_t> factors, absl::string_view what) {
  int64_t product = 1;
  bool fits = true;
  for (const int64_t factor : factors) {
    fits = fits && factor >= 0 && !__builtin_mul_overflow(product, factor, &product);
  }
  if (fits) return product;
  std::string text;
  for (const int64_t factor : factors) absl::StrAppend(&text, text.empty() ? "" : " x ", factor);
  return InvalidField(absl::StrCat(what, ": ", text, " does not fit a 64-bit count"));
}

}  // namespace dmuon::wire
