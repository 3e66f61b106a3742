// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Backends from plug-ins: which files are taken, and what is said about the others.
#include "kernels/plugin.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dmuon::kernels {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kVariable[] = "DMUON_CUDA_PLUGIN";

// MakeBackend("cuda") with the plug-in at `path`; empty: where it is without the variable.
absl::StatusOr<std::unique_ptr<Backend>> MakeFrom(const std::string& path) {
  setenv(kVariable, path.c_str(), 1);
  auto backend = MakeBackend("cuda");
  unsetenv(kVariable);
  return backend;
}

std::string Message(const absl::StatusOr<std::unique_ptr<Backend>>& backend) {
  return std::string(backend.status().message());
}

TEST(PluginTest, APluginOfThisBuildGivesItsBackend) {
  const auto backend = MakeFrom(DMUON_SOUND_PLUGIN);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const std::vector<float> values = {3.0F, 4.0F};
  EXPECT_EQ((*backend)->Measure(values).sum_squares, 25.0);
}

TEST(PluginTest, AnotherVersionIsRefusedWithBothNamed) {
  const auto backend = MakeFrom(DMUON_OTHER_PLUGIN);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(backend), AllOf(StartsWith("kernels backend \"cuda\": "), HasSubstr(DMUON_OTHER_PLUGIN),
                                      HasSubstr("is of version 0.0.9 (fedcba987654, GNU 1.0)"),
                                      HasSubstr(PluginVersion())));
}

TEST(PluginTest, ThePluginsOwnErrorIsPassedOn) {
  const auto backend = MakeFrom(DMUON_DEVICELESS_PLUGIN);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(backend), "kernels backend \"cuda\": no device");
}

TEST(PluginTest, AMissingFileIsNamed) {
  const auto backend = MakeFrom("/nowhere/libdmuon_cuda.so");
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(backend), HasSubstr("no plug-in at /nowhere/libdmuon_cuda.so; DMUON_CUDA_PLUGIN may name another"));
}

TEST(PluginTest, WithoutTheVariableThreePlacesAreLookedAt) {
  const auto backend = LoadBackend("other", "libdmuon_other.so", "DMUON_OTHER_PLUGIN");
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(backend), AllOf(HasSubstr("/bin/libdmuon_other.so, "), HasSubstr("/lib/libdmuon_other.so, "),
                                      HasSubstr("/lib/dmuon/libdmuon_other.so; ")));
}

TEST(PluginTest, AFileThatIsNoLibraryIsReportedInTheLoadersWords) {
  const std::string path = testing::TempDir() + "/not_a_library.so";
  std::ofstream(path) << "text";
  const auto backend = MakeFrom(path);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(backend), HasSubstr(path + ": file too short"));
}

TEST(PluginTest, ALibraryThatIsNoPluginIsRefused) {
  const auto backend = MakeFrom(DMUON_PLAIN_LIBRARY);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(backend), HasSubstr("is no plug-in: it lacks dmuon_plugin_version"));
}

bool MapsCuda() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    for (const char* name : {"libcublas", "libcudart", "libcuda.so", "libdmuon_cuda"}) {
      if (line.find(name) != std::string::npos) return true;
    }
  }
  return false;
}

// In processes of their own: a library that was loaded stays.
TEST(PluginDeathTest, AProcessMapsCudaOnlyWhenItAsksForIt) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(std::exit(MakeBackend("cpu").ok() && !MapsCuda() ? 0 : 1), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(MakeBackend("reference").ok() && !MapsCuda() ? 0 : 1), testing::ExitedWithCode(0), "");
#ifdef DMUON_CUDA_BUILT
  EXPECT_EXIT((static_cast<void>(MakeBackend("cuda")), std::exit(MapsCuda() ? 0 : 1)), testing::ExitedWithCode(0), "");
#endif
}

#ifdef DMUON_CUDA_BUILT
// No device is visible to the process, whether the machine has one or not.
TEST(PluginDeathTest, WithoutADeviceTheCudaPluginNamesTheErrorOfCuda) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto say = [] {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    const auto backend = MakeBackend("cuda");
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    std::exit(absl::IsUnavailable(backend.status()) ? 0 : 1);
  };
  EXPECT_EXIT(say(), testing::ExitedWithCode(0),
              "UNAVAILABLE: kernels backend \"cuda\": no CUDA device: cudaGetDeviceCount: "
              "cudaError(InsufficientDriver|NoDevice|StubLibrary) \\(");
}
#endif

}  // namespace
}  // namespace dmuon::kernels
