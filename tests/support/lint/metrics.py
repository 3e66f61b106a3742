# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Metric names in documents, dashboards and rules must be rows of the table."""

import pathlib
import re
from collections.abc import Iterator

TABLE = "daemon/base/metric_table.h"
DOCUMENTS = {".md", ".json", ".yml", ".yaml"}
_NAME = re.compile(r"\bdmuon_\w+_(?:total|seconds|bytes|info|ratio)\b(?:_(?:bucket|sum|count)\b)?")


def check(root: pathlib.Path, files: list[pathlib.Path]) -> Iterator[str]:
    if pathlib.Path(TABLE) not in files:
        return
    rows = set(re.findall(r'"(dmuon_\w+)"', (root / TABLE).read_text()))
    for path in files:
        in_dashboards = path.parts[0] == "dashboards"
        if path.suffix not in DOCUMENTS:
            continue
        for number, line in enumerate((root / path).read_text(errors="replace").split("\n"), 1):
            for name in re.findall(r"\bdmuon_\w+", line) if in_dashboards else _NAME.findall(line):
                if re.sub(r"_(bucket|sum|count)$", "", name) not in rows and name not in rows:
                    yield f"{path}:{number}: metric {name} is not in {TABLE}"
