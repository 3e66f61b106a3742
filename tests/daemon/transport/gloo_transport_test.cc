// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What is Gloo's alone: connecting, and peers that are processes and get killed or frozen.
#include "daemon/transport/gloo_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/transport/key_value_store.h"
#include "tests/daemon/base/temp_dir.h"
#include "tests/daemon/transport/nodes.h"
#include "wire/error.h"
#include "wire/scoped_fd.h"

// LeakSanitizer's, where the program has it.
extern "C" {
[[gnu::weak]] void __lsan_disable();
[[gnu::weak]] void __lsan_enable();
}

namespace dmuon::transport {
namespace {

using ::testing::HasSubstr;

// Keys are files, so that processes share them.
class FileStore final : public KeyValueStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    const std::string path = PathOf(key);
    std::ofstream(path + ".new") << value;
    std::filesystem::rename(path + ".new", path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline) override {
    if (freeze_at_get) ::raise(SIGSTOP);
    while (!std::filesystem::exists(PathOf(key))) {
      if (MonotonicNow() >= deadline) return absl::DeadlineExceededError(key);
      ::usleep(1'000);
    }
    std::ifstream file(PathOf(key));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  bool freeze_at_get = false;

 private:
  std::string PathOf(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return directory_.File(key);
  }
  TempDir directory_;
};

// More than any socket holds.
constexpr size_t kLarge = 64 << 20;

// Node a is the test, node b a process of its own.
class GlooProcessTest : public ::testing::Test {
 protected:
  ~GlooProcessTest() override {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  // Node b connects, runs `life`, and then stays until it is killed.
  void StartB(const std::function<void(Transport&)>& life) {
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto transport = ConnectGloo(*OpenGlooDevice({}), store_, MeshOf(2, 1), {}, Patient());
    if (transport.ok()) life(**transport);
    for (;;) ::pause();
  }
  absl::StatusOr<std::unique_ptr<Transport>> ConnectA(absl::Time deadline = Patient()) {
    return ConnectGloo(*OpenGlooDevice({}), store_, MeshOf(2, 0), {}, deadline);
  }

  void AwaitFrozenB() const { ::waitpid(child_, nullptr, WUNTRACED); }

  FileStore store_;
  pid_t child_ = -1;
};

TEST_F(GlooProcessTest, APeerKilledWhileItReceivesIsNamed) {
  StartB([](Transport& b) {
    Bytes received(kLarge);
    const auto exchange = b.Start({1, {}, {{0, received}}});
    ::raise(SIGSTOP);
  });
  const auto a = ConnectA();
  ASSERT_TRUE(a.ok()) << a.status();
  AwaitFrozenB();
  const Bytes sent(kLarge);
  const auto exchange = (*a)->Start({1, {{1, sent}}, {}});
  ASSERT_TRUE(exchange.ok());
  absl::SleepFor(absl::Milliseconds(50));  // the sockets fill up
  ::kill(child_, SIGKILL);
  const absl::Status waited = (*exchange)->Wait(Patient());
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable) << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("job/1/1: node 'b' is gone"));
}

TEST_F(GlooProcessTest, APeerThatBreaksOffWhileItSendsIsNamed) {
  StartB([](Transport& b) {
    // The second half cannot be read, so that the sender ends in the middle.
    void* half = ::mmap(nullptr, kLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::mprotect(half, kLarge / 2, PROT_READ);
    (void)RunBatch(b, {1, {{0, std::span(static_cast<const std::byte*>(half), kLarge)}}, {}});
    ::raise(SIGKILL);
  });
  const auto a = ConnectA();
  ASSERT_TRUE(a.ok()) << a.status();
  Bytes received(kLarge, std::byte{1});
  const absl::Status waited = RunBatch(**a, {1, {}, {{1, received}}});
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable) << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("job/1/1: node 'b' is gone"));
  EXPECT_EQ(received.front(), std::byte{0});
  EXPECT_EQ(received.back(), std::byte{1});
}

TEST_F(GlooProcessTest, APeerKilledBeforeItsBatchIsNamed) {
  StartB([](Transport&) { ::raise(SIGKILL); });
  const auto a = ConnectA();
  ASSERT_TRUE(a.ok()) << a.status();
  Bytes received(10);
  const absl::Status waited = RunBatch(**a, {1, {{1, Bytes(10)}}, {{1, received}}});
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnavailable) << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("node 'b'"));
}

TEST_F(GlooProcessTest, AFrozenPeerIsNamedByTheDeadline) {
  StartB([](Transport& b) {
    const Bytes sent(kLarge, std::byte{1});
    Bytes received(kLarge);
    const auto exchange = b.Start({1, {{0, sent}}, {{0, received}}});
    ::raise(SIGSTOP);
  });
  const auto a = ConnectA();
  ASSERT_TRUE(a.ok()) << a.status();
  AwaitFrozenB();
  Bytes received(kLarge);
  const absl::Time deadline = In(absl::Seconds(1));
  const absl::Status waited =
      RunBatch(**a, {1, {{1, Bytes(kLarge, std::byte{1})}}, {{1, received}}}, deadline);
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded) << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("job/1/1: node 'b'"));
  EXPECT_LT(MonotonicNow(), deadline + absl::Seconds(2)) << "a loaded machine, or a wait that hung";
}

TEST_F(GlooProcessTest, APeerFrozenWhileItConnectsIsNamedByTheDeadline) {
  store_.freeze_at_get = true;  // its address is there, and its sockets listen
  StartB([](Transport&) {});
  AwaitFrozenB();
  store_.freeze_at_get = false;
  const absl::Time deadline = In(absl::Seconds(1));
  const absl::Status made = ConnectA(deadline).status();
  EXPECT_EQ(made.code(), absl::StatusCode::kDeadlineExceeded) << made;
  EXPECT_THAT(std::string(made.message()), HasSubstr("job/1/1: node 'b'"));
  EXPECT_LT(MonotonicNow(), deadline + absl::Seconds(2)) << "a loaded machine, or a wait that hung";
}

TEST(GlooTransportTest, NodesThatNeverCameAreAllNamed) {
  MemoryStore store;
  const absl::Status made =
      ConnectGloo(*OpenGlooDevice({}), store, MeshOf(3, 1), {}, In(absl::Milliseconds(50)))
          .status();
  EXPECT_EQ(made.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(made.message(), "job/1/1: 2 of 3 nodes did not come in time: 'a', 'c'");
}

// A store in which the keys of one attempt are found under another's.
class MixedUpStore final : public KeyValueStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key.substr(key.rfind('/')), value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Time deadline) override {
    return store_.Get(key.substr(key.rfind('/')), deadline);
  }

 private:
  MemoryStore store_;
};

TEST(GlooTransportTest, WhoeverConnectsFromAnotherAttemptIsRefused) {
  MixedUpStore store;
  const auto device = *OpenGlooDevice({});
  SideBySide(2, [&](uint32_t self) {
    const std::string prefix = self == 0 ? "job/1/1" : "job/2/1";
    const absl::Status made =
        ConnectGloo(device, store, MeshOf(2, self, prefix), {}, Patient()).status();
    // Who finds out first closes; the other may see only that.
    if (!absl::IsUnavailable(made)) {
      EXPECT_EQ(made.code(), absl::StatusCode::kFailedPrecondition) << made;
      EXPECT_EQ(wire::ReasonOf(made), v1::ERROR_REASON_STALE_GENERATION);
    }
    EXPECT_THAT(std::string(made.message()), HasSubstr(self == 0 ? "'b'" : "'a'"));
  });
}

class BrokenStore final : public KeyValueStore {
 public:
  absl::Status Set(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Get(const std::string&, absl::Time) override {
    return absl::UnavailableError("the store is gone");
  }
};

TEST(GlooTransportTest, AnErrorOfTheStoreEndsConnecting) {
  BrokenStore store;
  const absl::Status made =
      ConnectGloo(*OpenGlooDevice({}), store, MeshOf(2, 0), {}, Patient()).status();
  EXPECT_EQ(made, absl::UnavailableError("the store is gone"));
}

TEST(GlooTransportTest, AGarbledAddressIsAnErrorOfItsPeer) {
  MemoryStore store;
  ASSERT_TRUE(store.Set("job/1/1/b", "nowhere").ok());
  const absl::Status made =
      ConnectGloo(*OpenGlooDevice({}), store, MeshOf(2, 0), {}, Patient()).status();
  EXPECT_EQ(made.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(made.message()), HasSubstr("job/1/1: node 'b' cannot be reached"));
}

// Connects to where `addresses` (of a node, for its first peer) say, and resets the connection.
void HangUpOn(const std::string& addresses) {
  sockaddr_in address{};
  ASSERT_GE(addresses.size(), sizeof(address));
  std::memcpy(&address, addresses.data(), sizeof(address));
  const wire::ScopedFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const linger reset{1, 0};
  ::setsockopt(caller.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  ASSERT_EQ(::connect(caller.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

TEST(GlooTransportTest, AStrangerThatHangsUpAtOnceCostsAnAttemptAndNotTheProcess) {
  MemoryStore store;
  const auto device = *OpenGlooDevice({});
  for (int attempt = 1; attempt <= 20; ++attempt) {
    const Mesh mesh = MeshOf(2, 0, absl::StrCat("job/1/", attempt));
    std::thread stranger([&] { HangUpOn(store.Get(mesh.prefix + "/a", Patient()).value()); });
    const absl::Status made =
        ConnectGloo(device, store, mesh, {}, In(absl::Milliseconds(100))).status();
    stranger.join();
    EXPECT_TRUE(absl::IsUnavailable(made) || absl::IsDeadlineExceeded(made)) << made;
  }
  SideBySide(2, [&](uint32_t self) {
    const absl::Status made =
        ConnectGloo(device, store, MeshOf(2, self, "job/1/21"), {}, Patient()).status();
    EXPECT_TRUE(made.ok()) << made;
  });
}

// Gloo forgets what it looked up when it throws because of an address that it cannot use.
absl::Status CannotListen(const GlooAddress& address) {
  if (__lsan_disable != nullptr) __lsan_disable();
  absl::Status status = OpenGlooDevice(address).status();
  if (__lsan_enable != nullptr) __lsan_enable();
  return status;
}

TEST(GlooTransportTest, ListensOnAnInterfaceOfThisMachineOnly) {
  EXPECT_TRUE(OpenGlooDevice({.host = "", .interface = "lo"}).ok());
  const absl::Status elsewhere = CannotListen({.host = "192.0.2.1", .interface = ""});  // RFC 5737
  EXPECT_EQ(elsewhere.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(elsewhere.message()), HasSubstr("192.0.2.1"));
  EXPECT_EQ(CannotListen({.host = "", .interface = "none0"}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemoryStoreTest, AKeyIsSetOnceAndAwaited) {
  MemoryStore store;
  EXPECT_EQ(store.Get("k", absl::InfinitePast()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread sets([&store] { EXPECT_TRUE(store.Set("k", std::string("\0v", 2)).ok()); });
  EXPECT_EQ(store.Get("k", Patient()).value(), std::string("\0v", 2));
  sets.join();
  EXPECT_EQ(store.Set("k", "w").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store.Get("k", absl::InfinitePast()).value(), std::string("\0v", 2));
}

}  // namespace
}  // namespace dmuon::transport
