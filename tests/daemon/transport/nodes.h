// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Nodes of a test: how they reach each other, what they send, and how they run side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/transport/gloo_transport.h"
#include "daemon/transport/key_value_store.h"
#include "daemon/transport/local_transport.h"
#include "daemon/transport/transport.h"

namespace dmuon::transport {

inline absl::Time In(absl::Duration duration) { return MonotonicNow() + duration; }
// For waits that a correct transport ends long before.
inline absl::Time Patient() { return In(absl::Seconds(30)); }

// "a", "b", ...
inline Mesh MeshOf(uint32_t size, uint32_t self, std::string prefix = "job/1/1") {
  Mesh mesh{std::move(prefix), {}, self};
  for (uint32_t i = 0; i < size; ++i)
    mesh.nodes.push_back(std::string(1, static_cast<char>('a' + i)));
  return mesh;
}

class Network {
 public:
  virtual ~Network() = default;
  virtual absl::StatusOr<std::unique_ptr<Transport>> Connect(const Mesh& mesh, Options options,
                                                             absl::Time deadline) = 0;
};

class LocalNetwork final : public Network {
 public:
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const Mesh& mesh, Options options,
                                                     absl::Time /*deadline*/) override {
    return switchboard.Connect(mesh, options);
  }
  Switchboard switchboard;
};

// All nodes of a process on one device.
class GlooNetwork final : public Network {
 public:
  absl::StatusOr<std::unique_ptr<Transport>> Connect(const Mesh& mesh, Options options,
                                                     absl::Time deadline) override {
    return ConnectGloo(device_, store_, mesh, options, deadline);
  }

 private:
  std::shared_ptr<GlooDevice> device_ = *OpenGlooDevice({});
  MemoryStore store_;
};

// fn(0) .. fn(size - 1), each on a thread.
inline void SideBySide(uint32_t size, const std::function<void(uint32_t)>& fn) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < size; ++i) threads.emplace_back([&fn, i] { fn(i); });
  for (std::thread& thread : threads) thread.join();
}

using Bytes = std::vector<std::byte>;

// What `from` says to `to` under `tag`: noise in pages, each of which begins with its number.
inline Bytes Said(uint32_t from, uint32_t to, uint64_t tag, size_t size) {
  constexpr size_t kPage = 4'096;
  Bytes noise(kPage);
  uint64_t word = (tag << 16) + (from << 8) + to + 1;
  for (size_t i = 0; i < kPage; i += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;  // Knuth, MMIX
    std::memcpy(noise.data() + i, &word, sizeof(word));
  }
  Bytes bytes(size);
  for (size_t page = 0; page < size; page += kPage) {
    const uint64_t number = word + page;
    std::memcpy(noise.data(), &number, sizeof(number));
    std::memcpy(bytes.data() + page, noise.data(), std::min(kPage, size - page));
  }
  return bytes;
}

// One node's side of a batch in which every node sends size(from, to) bytes to every other; owns
// the buffers.
class AllToAll {
 public:
  using Size = std::function<size_t(uint32_t from, uint32_t to)>;

  AllToAll(uint32_t nodes, uint32_t self, uint64_t tag, const Size& size) : self_(self), tag_(tag) {
    for (uint32_t peer = 0; peer < nodes; ++peer) {
      out_.push_back(peer == self ? Bytes() : Said(self, peer, tag, size(self, peer)));
      in_.emplace_back(peer == self ? 0 : size(peer, self));
    }
  }
  [[nodiscard]] Batch batch() {
    Batch batch{tag_, {}, {}};
    for (uint32_t peer = 0; peer < out_.size(); ++peer) {
      if (peer == self_) continue;
      batch.out.push_back({peer, out_[peer]});
      batch.in.push_back({peer, in_[peer]});
    }
    return batch;
  }
  // OK when every peer's bytes are there.
  [[nodiscard]] absl::Status Check() const {
    for (uint32_t peer = 0; peer < in_.size(); ++peer) {
      if (peer != self_ && in_[peer] != Said(peer, self_, tag_, in_[peer].size())) {
        return absl::DataLossError(
            absl::StrCat("node ", self_, " got other bytes than ", peer, " sent"));
      }
    }
    return absl::OkStatus();
  }
  absl::Status Run(Transport& transport) {
    absl::StatusOr<std::unique_ptr<Exchange>> exchange = transport.Start(batch());
    if (!exchange.ok()) return exchange.status();
    if (const absl::Status waited = (*exchange)->Wait(Patient()); !waited.ok()) return waited;
    return Check();
  }

 private:
  const uint32_t self_;
  const uint64_t tag_;
  std::vector<Bytes> out_;
  std::vector<Bytes> in_;
};

// Starts and waits.
inline absl::Status RunBatch(Transport& transport, Batch batch, absl::Time deadline = Patient()) {
  absl::StatusOr<std::unique_ptr<Exchange>> exchange = transport.Start(std::move(batch));
  return exchange.ok() ? (*exchange)->Wait(deadline) : exchange.status();
}

}  // namespace dmuon::transport
