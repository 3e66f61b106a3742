// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/daemon/checkpoint/memory_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dmuon::checkpoint {

struct MemoryFiles::Node {
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  explicit Node(bool folder) : is_folder(folder) {}

  const bool is_folder;
  std::string content;
  std::string synced_content;
  Names names;
  Names synced_names;
  int64_t changed_at = 0;
};

namespace {

using Node = MemoryFiles::Node;

bool IsComponent(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

class MemoryFile : public File {
 public:
  MemoryFile(std::shared_ptr<Node> node, int64_t& clock) : node_(std::move(node)), clock_(clock) {}

  int64_t Read(std::span<std::byte> to, uint64_t offset) override {
    if (offset >= node_->content.size()) return 0;
    const size_t count = std::min(to.size(), node_->content.size() - offset);
    std::memcpy(to.data(), node_->content.data() + offset, count);
    return static_cast<int64_t>(count);
  }
  int64_t Write(std::span<const std::byte> from, uint64_t offset) override {
    if (offset + from.size() > node_->content.size()) node_->content.resize(offset + from.size());
    std::memcpy(node_->content.data() + offset, from.data(), from.size());
    node_->changed_at = ++clock_;
    return static_cast<int64_t>(from.size());
  }
  int64_t Bytes() override { return static_cast<int64_t>(node_->content.size()); }
  int64_t ChangedAt() override { return node_->changed_at; }
  int Sync() override {
    node_->synced_content = node_->content;
    return 0;
  }

 private:
  const std::shared_ptr<Node> node_;
  int64_t& clock_;
};

class MemoryFolder : public Folder {
 public:
  MemoryFolder(std::shared_ptr<Node> node, const MemoryFiles& disk, int64_t& clock)
      : node_(std::move(node)), disk_(disk), clock_(clock) {}

  int OpenFolder(const std::string& name, std::unique_ptr<Folder>& folder) override {
    const std::shared_ptr<Node> node = Find(name);
    if (node == nullptr) return IsComponent(name) ? -ENOENT : -EINVAL;
    if (!node->is_folder) return -ENOTDIR;
    folder = std::make_unique<MemoryFolder>(node, disk_, clock_);
    return 0;
  }
  int MakeFolder(const std::string& name) override {
    if (!IsComponent(name)) return -EINVAL;
    return node_->names.emplace(name, std::make_shared<Node>(true)).second ? 0 : -EEXIST;
  }
  int OpenFile(const std::string& name, std::unique_ptr<File>& file) override {
    const std::shared_ptr<Node> node = Find(name);
    if (node == nullptr) return IsComponent(name) ? -ENOENT : -EINVAL;
    if (node->is_folder) return -EINVAL;
    file = std::make_unique<MemoryFile>(node, clock_);
    return 0;
  }
  int CreateFile(const std::string& name, std::unique_ptr<File>& file) override {
    if (!IsComponent(name)) return -EINVAL;
    const auto [at, made] = node_->names.emplace(name, std::make_shared<Node>(false));
    if (!made) return -EEXIST;
    file = std::make_unique<MemoryFile>(at->second, clock_);
    return 0;
  }
  int Rename(const std::string& from, const std::string& to) override {
    if (!IsComponent(from) || !IsComponent(to)) return -EINVAL;
    const std::shared_ptr<Node> node = Find(from);
    if (node == nullptr) return -ENOENT;
    node_->names.erase(from);
    node_->names[to] = node;
    return 0;
  }
  int Remove(const std::string& name) override {
    if (!IsComponent(name)) return -EINVAL;
    return node_->names.erase(name) == 1 ? 0 : -ENOENT;
  }
  int List(std::vector<std::string>& names) override {
    names.clear();
    for (const auto& [name, node] : node_->names) names.push_back(name);
    return 0;
  }
  int Sync() override {
    node_->synced_names = node_->names;
    return 0;
  }
  int64_t FreeBytes() override { return disk_.free_bytes; }

 private:
  [[nodiscard]] std::shared_ptr<Node> Find(const std::string& name) const {
    const auto at = node_->names.find(name);
    return at == node_->names.end() ? nullptr : at->second;
  }

  const std::shared_ptr<Node> node_;
  const MemoryFiles& disk_;
  int64_t& clock_;
};

// What is left of a folder's names, each of which the disk may have taken for itself.
Node::Names SomeOf(const Node& folder, std::mt19937_64& random) {
  Node::Names all = folder.synced_names;
  for (const auto& [name, node] : folder.names) all.emplace(name, nullptr);
  Node::Names left;
  for (const auto& [name, unused] : all) {
    const Node::Names& from = random() % 2 == 0 ? folder.names : folder.synced_names;
    if (const auto at = from.find(name); at != from.end()) left.insert(*at);
  }
  return left;
}

// The beginning new, the end old.
std::string SomeOf(const std::string& content, const std::string& synced, std::mt19937_64& random) {
  const size_t size = random() % 2 == 0 ? content.size() : synced.size();
  const size_t fresh = random() % (content.size() + 1);
  std::string left(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    if (i < fresh && i < content.size()) left[i] = content[i];
    else if (i < synced.size()) left[i] = synced[i];
  }
  return left;
}

void CrashNode(Node& node, MemoryFiles::Loss loss, std::mt19937_64& random) {
  if (loss == MemoryFiles::Loss::kAll) {
    node.names = node.synced_names;
    node.content = node.synced_content;
  } else if (loss == MemoryFiles::Loss::kSome) {
    node.names = SomeOf(node, random);
    node.content = SomeOf(node.content, node.synced_content, random);
  }
  node.synced_names = node.names;
  node.synced_content = node.content;
  for (const auto& [name, child] : node.names) CrashNode(*child, loss, random);
}

}  // namespace

MemoryFiles::MemoryFiles() : root_(std::make_shared<Node>(true)) {}

int MemoryFiles::OpenRoot(const std::string& path, std::unique_ptr<Folder>& root) {
  if (path.empty()) return -ENOENT;
  root = std::make_unique<MemoryFolder>(root_, *this, clock_);
  return 0;
}

void MemoryFiles::Crash(Loss loss, uint64_t seed) {
  std::mt19937_64 random(seed);
  CrashNode(*root_, loss, random);
}

std::vector<std::string> MemoryFiles::NamesIn(const std::string& name) const {
  std::vector<std::string> names;
  const auto folder = root_->names.find(name);
  if (folder == root_->names.end()) return names;
  for (const auto& [file, node] : folder->second->names) names.push_back(file);
  return names;
}

std::string& MemoryFiles::Content(const std::string& folder, const std::string& file) {
  return root_->names.at(folder)->names.at(file)->content;
}

}  // namespace dmuon::checkpoint
