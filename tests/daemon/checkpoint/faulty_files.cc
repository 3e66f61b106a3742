// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/daemon/checkpoint/faulty_files.h"

#include <utility>
#include <vector>

namespace dmuon::checkpoint {
namespace {

using State = FaultyFiles::State;
using Kind = Fault::Kind;

// Counts the call, and makes it unless it has an error.
template <typename Call>
auto Answer(State& state, bool is_sync, Call&& call) -> decltype(call()) {
  ++state.calls;
  if (state.HitError(is_sync)) return state.fault.error;
  const auto answer = call();
  return state.Hit(Kind::kLateError) ? state.fault.error : answer;
}

class FaultyFile : public File {
 public:
  FaultyFile(std::unique_ptr<File> file, std::shared_ptr<State> state) : file_(std::move(file)), state_(std::move(state)) {}

  int64_t Read(std::span<std::byte> to, uint64_t offset) override {
    return Answer(*state_, false, [&]() -> int64_t {
      if (state_->Hit(Kind::kEnd)) return 0;
      if (to.size() > 1 && state_->Hit(Kind::kShort)) to = to.first(to.size() / 2);
      const int64_t count = file_->Read(to, offset);
      if (count > 0 && state_->Hit(Kind::kFlip)) to[static_cast<size_t>(count) / 2] ^= std::byte{4};
      return count;
    });
  }
  int64_t Write(std::span<const std::byte> from, uint64_t offset) override {
    return Answer(*state_, false, [&] {
      if (from.size() > 1 && state_->Hit(Kind::kShort)) from = from.first(from.size() / 2);
      return file_->Write(from, offset);
    });
  }
  int64_t Bytes() override {
    return Answer(*state_, false, [&] { return file_->Bytes(); });
  }
  int64_t ChangedAt() override {
    return Answer(*state_, false, [&] { return file_->ChangedAt(); });
  }
  int Sync() override {
    return Answer(*state_, true, [&] { return file_->Sync(); });
  }

 private:
  const std::unique_ptr<File> file_;
  const std::shared_ptr<State> state_;
};

class FaultyFolder : public Folder {
 public:
  FaultyFolder(std::unique_ptr<Folder> folder, std::shared_ptr<State> state)
      : folder_(std::move(folder)), state_(std::move(state)) {}

  int OpenFolder(const std::string& name, std::unique_ptr<Folder>& folder) override {
    const int error = Answer(*state_, false, [&] { return folder_->OpenFolder(name, folder); });
    if (error == 0) folder = std::make_unique<FaultyFolder>(std::move(folder), state_);
    return error;
  }
  int MakeFolder(const std::string& name) override {
    return Answer(*state_, false, [&] { return folder_->MakeFolder(name); });
  }
  int OpenFile(const std::string& name, std::unique_ptr<File>& file) override {
    return Wrap(Answer(*state_, false, [&] { return folder_->OpenFile(name, file); }), file);
  }
  int CreateFile(const std::string& name, std::unique_ptr<File>& file) override {
    return Wrap(Answer(*state_, false, [&] { return folder_->CreateFile(name, file); }), file);
  }
  int Rename(const std::string& from, const std::string& to) override {
    return Answer(*state_, false, [&] { return folder_->Rename(from, to); });
  }
  int Remove(const std::string& name) override {
    return Answer(*state_, false, [&] { return folder_->Remove(name); });
  }
  int List(std::vector<std::string>& names) override {
    return Answer(*state_, false, [&] { return folder_->List(names); });
  }
  int Sync() override {
    return Answer(*state_, true, [&] { return folder_->Sync(); });
  }
  int64_t FreeBytes() override {
    return Answer(*state_, false, [&] { return folder_->FreeBytes(); });
  }

 private:
  int Wrap(int error, std::unique_ptr<File>& file) {
    if (error == 0) file = std::make_unique<FaultyFile>(std::move(file), state_);
    return error;
  }

  const std::unique_ptr<Folder> folder_;
  const std::shared_ptr<State> state_;
};

}  // namespace

bool FaultyFiles::State::Hit(Kind kind) {
  // Calls are numbered from 0; this one has been counted.
  const bool now = fault.from_on ? calls > fault.at : calls == fault.at + 1;
  if (!now || fault.kind != kind) return false;
  ++faults;
  return true;
}

bool FaultyFiles::State::HitError(bool is_sync) { return Hit(Kind::kError) || (is_sync && Hit(Kind::kSyncError)); }

int FaultyFiles::OpenRoot(const std::string& path, std::unique_ptr<Folder>& root) {
  const int error = Answer(*state_, false, [&] { return files_->OpenRoot(path, root); });
  if (error == 0) root = std::make_unique<FaultyFolder>(std::move(root), state_);
  return error;
}

}  // namespace dmuon::checkpoint
