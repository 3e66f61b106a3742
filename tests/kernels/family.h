// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Every row of optimizer.h, by name.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace dmuon::kernels {

struct Named {
  const char* name;
  Optimizer optimizer;
};

inline std::vector<Named> Family() {
  return {{"Muon", Muon()},   {"NorMuon", NorMuon()}, {"AdaMuon", AdaMuon()}, {"Muon2", Muon2()},
          {"Muon2Factored", Muon2Factored()},         {"Mona", Mona()},       {"Dion2", Dion2()},
          {"NuMuon", NuMuon()}, {"AdamW", AdamW()}};
}

// Those that `backend` has kernels for.
inline std::vector<Named> FamilyOf(const Backend& backend) {
  std::vector<Named> family = Family();
  std::erase_if(family, [&](const Named& row) { return !backend.Supports(row.optimizer).ok(); });
  return family;
}

}  // namespace dmuon::kernels
