// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/spec_difference.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dmuon::coordinator {
namespace {

using google::protobuf::util::MessageDifferencer;

// "shape: 8 shape: 4" or "nothing".
std::string Text(const google::protobuf::Message& message) {
  const std::string text = message.ShortDebugString();
  return text.empty() ? "nothing" : text;
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
    return absl::StrCat(kind, " '", a.Get(i).name(), "' is {", Text(a.Get(i)), "} for ", here,
                        " and {", Text(b.Get(i)), "} for ", there);
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
  if (!found.empty()) return found;
  if (a.max_grad_norm() != b.max_grad_norm()) {
    return absl::StrCat("max_grad_norm is ", a.max_grad_norm(), " for ", here, " and ",
                        b.max_grad_norm(), " for ", there);
  }
  if (a.missing_gradient() != b.missing_gradient()) {
    return absl::StrCat("missing_gradient is ", v1::MissingGradient_Name(a.missing_gradient()),
                        " for ", here, " and ", v1::MissingGradient_Name(b.missing_gradient()),
                        " for ", there);
  }
  return absl::StrCat("a field that this coordinator does not know is not the same for ", here,
                      " and ", there);
}

std::string ShardDifference(const v1::JobSpec& job, const v1::RegisterWorkerRequest& now,
                            const v1::RegisterWorkerRequest& before) {
  const int shared = std::min({now.shards_size(), before.shards_size(), job.tensors_size()});
  for (int i = 0; i < shared; ++i) {
    if (MessageDifferencer::Equals(now.shards(i), before.shards(i))) continue;
    return absl::StrCat("tensor '", job.tensors(i).name(), "' is {", Text(now.shards(i)),
                        "}, before it was {", Text(before.shards(i)), "}");
  }
  return "a field that this coordinator does not know is not the same";
}

}  // namespace dmuon::coordinator
