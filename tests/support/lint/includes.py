# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, and which headers stay in source files."""

import pathlib
import re
from collections.abc import Iterator

# The whole truth about direction: folder -> folders that its files may include, besides itself. Files
# named in EXCEPTIONS may include more. Generated proto headers count as "proto".
MAY_USE = {
    "kernels": set(),
    "proto/wire": {"proto"},
    "daemon/base": {"proto/wire", "proto"},
    "daemon/checkpoint": {"daemon/base", "proto/wire", "proto"},
    "daemon/plan": {"daemon/base", "proto/wire", "proto", "kernels/coefficients.h", "kernels/optimizer.h"},
    "daemon/coordinator": {"daemon/plan", "daemon/base", "proto/wire", "proto"},
    "daemon/transport": {"daemon/base", "proto/wire", "proto"},
    "daemon/node": {"daemon/plan", "daemon/checkpoint", "daemon/transport", "daemon/base", "proto/wire", "proto", "kernels"},
    "daemon/ctl": {"daemon/plan", "daemon/base", "proto/wire", "proto"},
    "client/src": {"proto/wire", "proto", "client/include"},
    "client/include": set(),
    "client/examples": {"client/include"},
}
# Where a process is put together.
EXCEPTIONS = {"daemon/node/main.cc": {"daemon/coordinator"}}
# Reading a clock, a file or a socket would end the purity of these.
PURE = {
    "daemon/plan",
    *(f"daemon/coordinator/{name}" for name in ("coordinator.h", "coordinator.cc", "part_board.h", "part_board.cc")),
}
IMPURE_HEADERS = re.compile(r"<(thread|mutex|condition_variable|fstream|filesystem|unistd\.h|sys/.*)>|absl/time/clock\.h|wire/mutex\.h")

_INCLUDE = re.compile(r"^\s*#\s*include\s+([<\"]([^>\"]+)[>\"])", re.MULTILINE)
CPP = {".cc", ".h", ".hpp", ".c", ".cu", ".cuh"}


def check(root: pathlib.Path, files: list[pathlib.Path]) -> Iterator[str]:
    for path in files:
        if path.suffix not in CPP:
            continue
        source = (root / path).read_text()
        for match in _INCLUDE.finditer(source):
            place = f"{path}:{source.count(chr(10), 0, match.start()) + 1}"
            yield from _check_include(path, place, match[1], match[2])


def _check_include(path: pathlib.Path, place: str, spelled: str, target: str) -> Iterator[str]:
    if path.suffix in {".h", ".hpp"} and (target.startswith("grpcpp/") or target.endswith(".grpc.pb.h")):
        yield f"{place}: {target} in a header; gRPC's headers belong into .cc files"
    if path.parts[0] != "tests" and (target.startswith("tests/") or target.startswith("gtest/")):
        yield f"{place}: only tests may include {target}"
    home = _home_of(str(path))
    if home is None:
        return
    if any(str(path) == pure or str(path).startswith(pure + "/") for pure in PURE) and IMPURE_HEADERS.search(spelled):
        yield f"{place}: {target} in pure code; time and data come in as arguments"
    owner = _owner_of(target)
    allowed = MAY_USE[home] | EXCEPTIONS.get(str(path), set()) | {home}
    if owner is not None and owner not in allowed and target not in allowed:
        yield f"{place}: {home}/ may not include {target}"


def _home_of(path: str) -> str | None:
    """The row of MAY_USE that a file is under."""
    return next((folder for folder in MAY_USE if path.startswith(folder + "/")), None)


def _owner_of(target: str) -> str | None:
    """The folder of ours that an include comes from; None for the outside."""
    if target.endswith(".pb.h"):
        return "proto"
    for prefix, owner in (("wire/", "proto/wire"), ("dmuon/dmuon.h", "client/include")):
        if target.startswith(prefix):
            return owner
    return _home_of(target)
