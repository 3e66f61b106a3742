// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "kernels/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dmuon::kernels {
namespace {

std::vector<std::string> PlacesOf(std::string_view file, const char* override_variable) {
  if (const char* path = std::getenv(override_variable); path != nullptr && *path != '\0') return {path};
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path lib = program.parent_path() / "lib";
  return {program / file, lib / file, lib / "dmuon" / file};
}

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

absl::StatusOr<std::unique_ptr<Backend>> LoadFrom(const std::string& path) {
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return absl::NotFoundError(dlerror());
  auto* version = reinterpret_cast<PluginVersionFunction*>(dlsym(library.get(), kPluginVersionSymbol));
  auto* make = reinterpret_cast<PluginMakeFunction*>(dlsym(library.get(), kPluginMakeSymbol));
  if (version == nullptr || make == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no plug-in: it lacks ", kPluginVersionSymbol, " or ",
                                                      kPluginMakeSymbol));
  }
  if (std::string_view(version()) != PluginVersion()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is of version ", version(), "; must be of this program's, ",
                                                      PluginVersion()));
  }
  absl::Status status;
  std::unique_ptr<Backend> backend(make(&status));
  // Its code is needed as long as the backend and what the status may hold, so for ever.
  library.release();
  if (backend == nullptr) return status;
  return backend;
}

}  // namespace

const char* PluginVersion() { return DMUON_PLUGIN_VERSION; }

absl::StatusOr<std::unique_ptr<Backend>> LoadBackend(std::string_view name, std::string_view file,
                                                     const char* override_variable) {
  const std::string prefix = absl::StrCat("kernels backend \"", std::string(name), "\": ");
  const std::vector<std::string> places = PlacesOf(file, override_variable);
  for (const std::string& path : places) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    absl::StatusOr<std::unique_ptr<Backend>> backend = LoadFrom(path);
    if (backend.ok()) return backend;
    return absl::Status(backend.status().code(), absl::StrCat(prefix, backend.status().message()));
  }
  return absl::NotFoundError(absl::StrCat(prefix, "no plug-in at ", absl::StrJoin(places, ", "), "; ",
                                          override_variable, " may name another place"));
}

}  // namespace dmuon::kernels
