// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/checkpoint/entry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "wire/error.h"
#include "wire/validate.h"

namespace dmuon::checkpoint {
namespace {

absl::Status ValidateText(absl::string_view text, absl::string_view what) {
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!text.empty() && text.size() <= wire::kMaxNameBytes && printable) return absl::OkStatus();
  return wire::InvalidField(absl::StrCat(what, " has ", text.size(), " bytes", printable ? "" : ", some not printable",
                                         "; allowed are 1..", wire::kMaxNameBytes, " of printable ASCII"));
}

absl::Status ValidateShape(const std::vector<int64_t>& shape, absl::string_view what) {
  if (shape.size() > wire::kMaxDims) {
    return wire::InvalidField(absl::StrCat(what, ": ", shape.size(), " dimensions, allowed are 0..", wire::kMaxDims));
  }
  for (const int64_t length : shape) {
    if (length >= 0 && length <= wire::kMaxLength) continue;
    return wire::InvalidField(absl::StrCat(what, ": length ", length, ", allowed are 0..", wire::kMaxLength));
  }
  // In bytes: four for each element.
  std::vector<int64_t> factors = shape;
  factors.push_back(sizeof(float));
  return wire::CheckedProduct(factors, what).status();
}

}  // namespace

uint64_t Entry::elements() const {
  uint64_t product = 1;
  for (const int64_t length : shape) product *= static_cast<uint64_t>(length);
  return product;
}

std::string Entry::Key() const {
  std::string key = absl::StrCat(tensor, "/", quantity);
  if (box != wire::WholeBox(tensor_shape)) key += box.ToString();
  if (matrix >= 0) absl::StrAppend(&key, "#", matrix);
  return key;
}

absl::Status ValidateEntry(const Entry& entry) {
  DMUON_RETURN_IF_ERROR(ValidateText(entry.tensor, "the name of a tensor"));
  DMUON_RETURN_IF_ERROR(ValidateText(entry.optimizer, "the name of an optimizer"));
  DMUON_RETURN_IF_ERROR(ValidateText(entry.quantity, "the name of a quantity"));
  const std::string what = absl::StrCat(entry.tensor, "/", entry.quantity);
  DMUON_RETURN_IF_ERROR(ValidateShape(entry.tensor_shape, what));
  DMUON_RETURN_IF_ERROR(ValidateShape(entry.shape, what));
  if (entry.box.ndim < 0 || entry.box.ndim > wire::kMaxDims) {
    return wire::InvalidField(absl::StrCat(what, ": a box of ", entry.box.ndim, " dimensions"));
  }
  DMUON_RETURN_IF_ERROR(wire::ParseBox(wire::ToProto(entry.box), entry.tensor_shape, what).status());
  if (entry.matrix < -1 || entry.matrix >= wire::kMaxMatrices) {
    return wire::InvalidField(
        absl::StrCat(what, ": matrix ", entry.matrix, ", allowed are -1..", wire::kMaxMatrices - 1));
  }
  const std::vector<int64_t> lengths(entry.box.length.begin(), entry.box.length.begin() + entry.box.ndim);
  if (entry.matrix < 0 && entry.shape != lengths) {
    return wire::InvalidField(absl::StrCat(what, ": the values' shape is not that of their box ", entry.box.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace dmuon::checkpoint
