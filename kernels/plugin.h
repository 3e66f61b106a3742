// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A backend in a shared library of its own, loaded when it is asked for and never unloaded. The library exports
// two functions with C names and passes C++ objects, so it must be of the same build as the program: both hold the
// same version text, which is compared before anything else is called.
//
// A plug-in defines both, as DMUON_PLUGIN_EXPORT:
//   const char* dmuon_plugin_version()                          PluginVersion() of its build
//   dmuon::kernels::Backend* dmuon_plugin_make(absl::Status*)   null, and the status says why
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

#define DMUON_PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace dmuon::kernels {

inline constexpr char kPluginVersionSymbol[] = "dmuon_plugin_version";
inline constexpr char kPluginMakeSymbol[] = "dmuon_plugin_make";
using PluginVersionFunction = const char*();
using PluginMakeFunction = Backend*(absl::Status*);

// The project's version, the commit that the build was configured at, and the compiler: "0.1.0 (0123456789ab, GNU 12.2.0)".
const char* PluginVersion();

// The backend of the plug-in `file` ("libdmuon_cuda.so"), which is looked for beside this program, in ../lib and
// ../lib/dmuon from there; or of the file that the environment variable `override_variable` names, and nowhere else.
//   NOT_FOUND            the plug-in, naming the places; or a library that it needs, in the loader's words
//   FAILED_PRECONDITION  it is of another version, or no plug-in
//   else                 what the plug-in's own status says
// Errors begin with `name`, the backend's.
absl::StatusOr<std::unique_ptr<Backend>> LoadBackend(std::string_view name, std::string_view file,
                                                     const char* override_variable);

}  // namespace dmuon::kernels
