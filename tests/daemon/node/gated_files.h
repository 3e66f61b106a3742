// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A disk whose reads can be held up, and come at a moment that a test knows.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/checkpoint/files.h"
#include "wire/mutex.h"

namespace dmuon::node {

// Thread-safe.
class Gate {
 public:
  // Reads of part files wait from now on.
  void Close() { Set(true); }
  void Open() { Set(false); }
  // Until one waits.
  void AwaitReader() {
    const wire::MutexLock lock(mu_);
    while (waiting_ == 0) changed_.Wait(mu_);
  }
  // Once: what happens before the read after `passing` more reads.
  void Before(size_t passing, std::function<void()> what) {
    const wire::MutexLock lock(mu_);
    passing_ = passing;
    before_ = std::move(what);
  }
  void Pass() {
    if (const std::function<void()> what = TakeBefore()) what();
    const wire::MutexLock lock(mu_);
    ++waiting_;
    changed_.NotifyAll();
    while (closed_) changed_.Wait(mu_);
    --waiting_;
  }

 private:
  std::function<void()> TakeBefore() {
    const wire::MutexLock lock(mu_);
    if (passing_ == 0) return std::exchange(before_, nullptr);
    --passing_;
    return nullptr;
  }
  void Set(bool closed) {
    const wire::MutexLock lock(mu_);
    closed_ = closed;
    changed_.NotifyAll();
  }

  wire::Mutex mu_;
  wire::CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  size_t passing_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<void()> before_ ABSL_GUARDED_BY(mu_);
};

class GatedFile final : public checkpoint::File {
 public:
  GatedFile(std::unique_ptr<checkpoint::File> file, std::shared_ptr<Gate> gate)
      : file_(std::move(file)), gate_(std::move(gate)) {}
  int64_t Read(std::span<std::byte> to, uint64_t offset) override {
    gate_->Pass();
    return file_->Read(to, offset);
  }
  int64_t Write(std::span<const std::byte> from, uint64_t offset) override { return file_->Write(from, offset); }
  int64_t Bytes() override { return file_->Bytes(); }
  int64_t ChangedAt() override { return file_->ChangedAt(); }
  int Sync() override { return file_->Sync(); }

 private:
  const std::unique_ptr<checkpoint::File> file_;
  const std::shared_ptr<Gate> gate_;
};

class GatedFolder final : public checkpoint::Folder {
 public:
  GatedFolder(std::unique_ptr<checkpoint::Folder> folder, std::shared_ptr<Gate> gate)
      : folder_(std::move(folder)), gate_(std::move(gate)) {}
  int OpenFolder(const std::string& name, std::unique_ptr<checkpoint::Folder>& folder) override {
    const int error = folder_->OpenFolder(name, folder);
    if (error == 0) folder = std::make_unique<GatedFolder>(std::move(folder), gate_);
    return error;
  }
  int MakeFolder(const std::string& name) override { return folder_->MakeFolder(name); }
  int OpenFile(const std::string& name, std::unique_ptr<checkpoint::File>& file) override {
    const int error = folder_->OpenFile(name, file);
    const bool is_part = name.ends_with(".safetensors");
    if (error == 0 && is_part) file = std::make_unique<GatedFile>(std::move(file), gate_);
    return error;
  }
  int CreateFile(const std::string& name, std::unique_ptr<checkpoint::File>& file) override {
    return folder_->CreateFile(name, file);
  }
  int Rename(const std::string& from, const std::string& to) override { return folder_->Rename(from, to); }
  int Remove(const std::string& name) override { return folder_->Remove(name); }
  int List(std::vector<std::string>& names) override { return folder_->List(names); }
  int Sync() override { return folder_->Sync(); }
  int64_t FreeBytes() override { return folder_->FreeBytes(); }

 private:
  const std::unique_ptr<checkpoint::Folder> folder_;
  const std::shared_ptr<Gate> gate_;
};

class GatedFiles final : public checkpoint::Files {
 public:
  explicit GatedFiles(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  int OpenRoot(const std::string& path, std::unique_ptr<checkpoint::Folder>& root) override {
    const int error = disk_->OpenRoot(path, root);
    if (error == 0) root = std::make_unique<GatedFolder>(std::move(root), gate_);
    return error;
  }

 private:
  const std::shared_ptr<checkpoint::Files> disk_ = checkpoint::DiskFiles();
  const std::shared_ptr<Gate> gate_;
};

}  // namespace dmuon::node
