# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of tests/lint.py, one module a subject. Each has check(root, files) -> findings."""
