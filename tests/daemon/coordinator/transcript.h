// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The language of tests/scenarios/coordinator/*.txt: one command a line, then what came of it.
//
//   # a comment; blank lines are free
//   join a slots=2 [incarnation=2] [generation=7] [protocol=9] [owns=all]
//          [held=JOB@GENERATION:STEP [nodes=a+b] [ranks=0+1] [copies=ring] [state=yes]]
//                                          ranks: of its own workers, whose rows it knows; copies: each node's on the next
//   beat a | leave a                       as the node's latest incarnation, or incarnation=1
//   register a rank=0 of=2 [job=demo] [model=mlp] [split=rows|copies] [fault=hole|overlap|reduced]
//   release a [job=demo in_order=no]       failure=no_memory: of the successor that could not be taken over
//   drain a | undrain a                    and all plans that follow, as of join, leave and wait
//   meet a [job=demo generation=1 attempt=0]
//   report a name=x step=4 [part=2] [failure=disk_full] [generation=1] [job=demo] [file=..] [sha=..] [of=b]
//                                          part=2 has other bytes than part=1, which is meant without a failure
//   wait 5s                                moves the clock, then ticks
//   watch a | status | plan [job=demo]     what a new watch, and dmuonctl, would get
//
// Outcomes:
//   -> OK                                  or CODE/REASON: message
//   -> why: ...                            the reason that goes to the log
//   -> to a: ...                           an event for a node
//   -> parts: a#1 b#1 | waits for: b | failure: ...    where a checkpoint stands
//
// Models (all matrices with Muon, vectors with AdamW): `mlp` = w1 8x4, b1 8, w2 4x8; `wide` differs
// from it in w2 4x9; `clipped` in max_grad_norm, `copied` in replication. Splits: `rows` as FSDP2, `copies` as DDP. Faults:
// the rank's w1 lacks its last row, takes one row too many, or says reduced=false.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/coordinator/coordinator.h"

namespace dmuon::coordinator {

class Transcript {
 public:
  Transcript();

  // What `command` leads to, a line each, without the arrows.
  std::vector<std::string> Run(const std::string& command);

 private:
  using Words = std::map<std::string, std::string>;  // key=value of a command

  v1::NodeIdentity Identity(const std::string& node, const Words& words);
  static v1::HeldJob Held(const v1::JoinRequest& request, const Words& words);
  Outcome Join(const std::string& node, const Words& words);
  Outcome Register(const std::string& node, const Words& words);
  std::vector<std::string> Report(const std::string& node, const Words& words);
  std::vector<std::string> Meet(const std::string& node, const Words& words);
  Outcome Release(const std::string& node, const Words& words);
  std::vector<std::string> Drain(const std::string& node, bool undo);
  std::vector<std::string> WithPlans(std::vector<std::string> lines);
  std::vector<std::string> Describe(const Outcome& outcome) const;
  std::vector<std::string> DescribeStatus() const;
  std::vector<std::string> DescribePlan(const std::string& job) const;

  absl::Time now_ = absl::UnixEpoch();
  Coordinator core_;
  std::map<std::string, std::string> incarnations_;  // latest, by node
};

// The file's text with every outcome as it is now; equal to `text` when all is as expected.
std::string Replay(const std::string& text);

}  // namespace dmuon::coordinator
