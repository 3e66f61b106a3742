// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A disk in front of another one that answers wrongly when told to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "daemon/checkpoint/files.h"

namespace dmuon::checkpoint {

// Which calls are answered wrongly, and how. All calls of a FaultyFiles and of what it opened are counted together.
struct Fault {
  enum class Kind {
    kNone,
    kError,      // the call does nothing and answers `error`
    kSyncError,  // the same, of syncs only
    kShort,      // a read or write does half of its bytes
    kEnd,        // a read says that the file has ended
    kFlip,       // a read turns one bit
    kLateError,  // the call is done, and then answers `error`
  };
  Kind kind = Kind::kNone;
  int error = 0;        // negative
  uint64_t at = 0;      // the number of the call
  bool from_on = false;  // all later ones, too: a disk that died, or a process
};

class FaultyFiles : public Files {
 public:
  // Shared with everything that was opened.
  struct State {
    Fault fault;
    uint64_t calls = 0;
    uint64_t faults = 0;  // that were injected
    // Whether this call, which is counted, has a fault of one of the kinds that suit it.
    bool Hit(Fault::Kind kind);
    bool HitError(bool is_sync);
  };

  explicit FaultyFiles(std::shared_ptr<Files> files) : files_(std::move(files)), state_(std::make_shared<State>()) {}
  int OpenRoot(const std::string& path, std::unique_ptr<Folder>& root) override;

  // Counts calls anew.
  void Arm(const Fault& fault) { *state_ = State{fault, 0, 0}; }
  [[nodiscard]] uint64_t calls() const { return state_->calls; }
  [[nodiscard]] uint64_t faults() const { return state_->faults; }

 private:
  const std::shared_ptr<Files> files_;
  const std::shared_ptr<State> state_;
};

}  // namespace dmuon::checkpoint
