// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/spec_difference.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace dmuon::coordinator {
namespace {

using google::protobuf::util::MessageDifferencer;

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;

// "[4, 8]", "5", "unset".
std::string ValueText(const Message& message, const FieldDescriptor& field) {
  std::string text;
  if (!field.is_repeated()) {
    if (field.has_presence() && !message.GetReflection()->HasField(message, &field)) return "unset";
    TextFormat::PrintFieldValueToString(message, &field, -1, &text);
    return text;
  }
  const int size = message.GetReflection()->FieldSize(message, &field);
  std::vector<std::string> values(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    TextFormat::PrintFieldValueToString(message, &field, i, &values[static_cast<size_t>(i)]);
  }
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

// "shape is [4, 9] for rank 1 and [4, 8] for rank 0": the first field that differs, as deep as it
// goes. Empty when only unknown fields do.
std::string FieldDifference(const Message& a, const std::string& here, const Message& b,
                            const std::string& there, const std::string& prefix = "") {
  const auto& descriptor = *a.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const std::string name = prefix + std::string(field.name());
    const auto& in_a = *a.GetReflection();
    const auto& in_b = *b.GetReflection();
    if (!field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
        in_a.HasField(a, &field) && in_b.HasField(b, &field)) {
      std::string deeper = FieldDifference(in_a.GetMessage(a, &field), here,
                                           in_b.GetMessage(b, &field), there, name + ".");
      if (!deeper.empty()) return deeper;
      continue;
    }
    const std::string value_a = ValueText(a, field);
    const std::string value_b = ValueText(b, field);
    if (value_a == value_b) continue;
    return absl::StrCat(name, " is ", value_a, " for ", here, " and ", value_b, " for ", there);
  }
  return "";
}

std::string Unknown(const std::string& here, const std::string& there) {
  return absl::StrCat("a field that this coordinator does not know is not the same for ", here,
                      " and ", there);
}

// Names of `Item` are unique in a job, so the first pair that differs names the culprit.
template <typename Item>
std::string FirstDifference(absl::string_view kind,
                            const google::protobuf::RepeatedPtrField<Item>& a,
                            const std::string& here,
                            const google::protobuf::RepeatedPtrField<Item>& b,
                            const std::string& there) {
  const int shared = std::min(a.size(), b.size());
  for (int i = 0; i < shared; ++i) {
    if (MessageDifferencer::Equals(a.Get(i), b.Get(i))) continue;
    if (a.Get(i).name() != b.Get(i).name()) {
      return absl::StrCat(kind, " ", i, " is '", a.Get(i).name(), "' for ", here, " and '",
                          b.Get(i).name(), "' for ", there);
    }
    const std::string field = FieldDifference(a.Get(i), here, b.Get(i), there);
    return absl::StrCat(kind, " '", a.Get(i).name(), "': ",
                        field.empty() ? Unknown(here, there) : field);
  }
  if (a.size() == b.size()) return "";
  const auto& longer = a.size() > b.size() ? a : b;
  return absl::StrCat(here, " has ", a.size(), " ", kind, "s and ", there, " has ", b.size(), "; '",
                      longer.Get(shared).name(), "' is the first that the other lacks");
}

}  // namespace

std::string SpecDifference(const v1::JobSpec& a, const std::string& here, const v1::JobSpec& b,
                           const std::string& there) {
  if (a.world_size() != b.world_size()) {
    return absl::StrCat("world_size is ", a.world_size(), " for ", here, " and ", b.world_size(),
                        " for ", there);
  }
  std::string found = FirstDifference("group", a.groups(), here, b.groups(), there);
  if (found.empty()) found = FirstDifference("tensor", a.tensors(), here, b.tensors(), there);
  if (found.empty()) found = FieldDifference(a, here, b, there);
  return found.empty() ? Unknown(here, there) : found;
}

std::string ShardDifference(const v1::JobSpec& job, const v1::RegisterWorkerRequest& now,
                            const v1::RegisterWorkerRequest& before) {
  static const std::string kHere = "this registration";
  static const std::string kThere = "the one before";
  const int shared = std::min({now.shards_size(), before.shards_size(), job.tensors_size()});
  for (int i = 0; i < shared; ++i) {
    if (MessageDifferencer::Equals(now.shards(i), before.shards(i))) continue;
    const std::string field = FieldDifference(now.shards(i), kHere, before.shards(i), kThere);
    return absl::StrCat("tensor '", job.tensors(i).name(), "': ",
                        field.empty() ? Unknown(kHere, kThere) : field);
  }
  return Unknown(kHere, kThere);
}

}  // namespace dmuon::coordinator
