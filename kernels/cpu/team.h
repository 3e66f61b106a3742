// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Each thread that computes has a team: itself and the OpenMP threads that help it. Work is cut by its size alone,
// never by the team's, so that the bits of a result do not depend on it.
#pragma once

#include <cstddef>

namespace dmuon::kernels {

// Gives the calling thread a team of `threads`, itself included, at least 1. Without it: 1.
void BindTeam(int threads);
int TeamSize();

// While it lives the calling thread has no helpers: what a team runs may be cut for teams itself.
class Alone {
 public:
  Alone() : before_(TeamSize()) { BindTeam(1); }
  ~Alone() { BindTeam(before_); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  const int before_;
};

// Calls work(context, i) once for every i in [0, count), by the calling thread's team in any order; with one
// thread in rising order. `work` must not throw, and calls this again only while it is Alone. Returns when all are done.
void RunTeam(size_t count, void (*work)(const void* context, size_t i), const void* context);

// The same for anything that can be called with an index.
template <class Work>
void ForEach(size_t count, const Work& work) {
  RunTeam(count, [](const void* context, size_t i) { (*static_cast<const Work*>(context))(i); }, &work);
}

}  // namespace dmuon::kernels
