# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the shared fixtures known to every test."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))
# Plans by operation counts, the same on every run; tests of measuring ask for it.
os.environ["DMUON_AUTOTUNE"] = "off"

from dmuon_fixtures import daemon, module_daemon, two_nodes  # noqa: E402, F401  (fixtures)
