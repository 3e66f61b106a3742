// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Of which steps the two copies of one state are: the last one, and the one that is on its way or was before it. Pure:
// the bytes are replicas.h's. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dmuon/v1/peer.pb.h"

namespace dmuon::node {

class CopySteps {
 public:
  // Which of the two takes the state after `step`. One that is of it already, and stays so: the same is sent again. Else
  // the older one, which is a copy of nothing from now on.
  size_t GiveWay(uint64_t step);
  // It has arrived there.
  void Arrived(size_t copy, uint64_t step);
  // nullopt: neither is of it.
  [[nodiscard]] std::optional<size_t> Find(uint64_t step) const;

  // The state after `step` is that before it.
  void Extend(uint64_t step);
  // There is no copy any more.
  void Forget() { copies_ = {}; }
  // What comes after `step` has not been.
  void ForgetAfter(uint64_t step);

  // Of the newest copy; nullopt: there is none.
  [[nodiscard]] std::optional<uint64_t> newest() const;
  void Describe(google::protobuf::RepeatedPtrField<v1::StepRange>& ranges) const;

 private:
  struct Steps {  // first > last: nothing
    uint64_t first = 1;
    uint64_t last = 0;
    [[nodiscard]] bool empty() const { return first > last; }
    [[nodiscard]] bool Has(uint64_t step) const { return first <= step && step <= last; }
  };
  std::array<Steps, 2> copies_;
};

}  // namespace dmuon::node
