# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What is written in files: licence lines, unfinished work, machine paths, folders without a README."""

import pathlib
import re
from collections.abc import Iterator

from lint.sizes import without_literals

CODE = {".cc", ".h", ".hpp", ".c", ".cu", ".cuh", ".py", ".sh", ".proto"}
# Copies of other projects' files keep their own notice.
FOREIGN = "proto/google/"
SPDX = ("SPDX-FileCopyrightText: 2026 The dmuon authors", "SPDX-License-Identifier: Apache-2.0")
# The rest reports errors as absl::Status; these talk to code that throws, or must let nothing out.
MAY_CATCH = {"daemon/base/metrics.cc", "daemon/ctl/main.cc", "daemon/node/main.cc", "daemon/transport/gloo_transport.cc",
             "client/src/c_api.cc", "kernels/cpu/cpu_backend.cc"}
MAY_CATCH_BELOW = ("client/examples/", "client/include/")
# Parts of this expression are split so that it does not find itself.
MACHINE = re.compile(r"/wo" r"rk/|\.\./sha" r"red/|/ro" r"ot/|/ho" r"me/\w|/op" r"t/(?:pypi|wheels)"
                     r"|py" r"pi\.org|npm" r"js\.(?:org|com)|pytor" r"ch\.org/whl|deb\.deb" r"ian\.org")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
FORBIDDEN_FOLDERS = {"common", "utils", "internal"}
# Folders that hold one thing of their parent's.
NO_README = {"client/include", "client/include/dmuon", "proto/dmuon", "proto/dmuon/v1", "proto/google",
             "proto/google/rpc", "client/python/dmuon_client", ".ci"}


def check(root: pathlib.Path, files: list[pathlib.Path]) -> Iterator[str]:
    for path in files:
        data = (root / path).read_bytes()
        if b"\0" in data:
            continue
        source = data.decode("utf-8", errors="replace")
        if path.suffix in CODE or path.name in {"CMakeLists.txt", "run"}:
            yield from _check_code(path, source)
        for number, line in enumerate(source.split("\n"), 1):
            if found := MACHINE.search(line):
                yield f"{path}:{number}: names a place of one machine or a registry: {found[0]}"
        if not source.endswith("\n") and source:
            yield f"{path}:{source.count(chr(10)) + 1}: no newline at the end"
    yield from _check_folders(root, files)


def _check_code(path: pathlib.Path, source: str) -> Iterator[str]:
    head = "\n".join(source.split("\n")[:4])
    if not str(path).startswith(FOREIGN) and not all(line in head for line in SPDX):
        yield f"{path}:1: the two SPDX lines are missing"
    if path.suffix == ".h" and path.parts[0] != "client" and "#pragma once" not in source:
        yield f"{path}:1: no #pragma once"
    for number, line in enumerate(source.split("\n"), 1):
        if found := UNFINISHED.search(line):
            yield f"{path}:{number}: unfinished work: {found[0]}"
    if path.suffix in {".cc", ".h", ".hpp"} and not _may_catch(path):
        for number, line in enumerate(without_literals(source).split("\n"), 1):
            if re.search(r"\bcatch\s*\(", line):
                yield f"{path}:{number}: catch outside of the files that call throwing code"


def _may_catch(path: pathlib.Path) -> bool:
    return path.parts[0] == "tests" or str(path) in MAY_CATCH or str(path).startswith(MAY_CATCH_BELOW)


def _check_folders(root: pathlib.Path, files: list[pathlib.Path]) -> Iterator[str]:
    folders = {folder for path in files for folder in path.parents if folder != pathlib.Path(".")}
    present = {str(path) for path in files}
    for folder in sorted(folders):
        if folder.name in FORBIDDEN_FOLDERS:
            yield f"{folder}:1: a folder of this name says nothing about its content"
        if folder.parts[0] == "tests" and len(folder.parts) > 1:
            continue  # they mirror the tree; tests/README.md covers them
        if str(folder) in NO_README or f"{folder}/README.md" in present:
            continue
        above = next((f"{up}/README.md" for up in folder.parents if f"{up}/README.md" in present), None)
        if above is None or f"{folder.name}/" not in (root / above).read_text():
            yield f"{folder}:1: neither a README.md here nor a word about {folder.name}/ in one above"
    if "README.md" not in present:
        yield "README.md:1: missing"
