#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The gates that no compiler checks: sizes, include directions, licences, exceptions, the C ABI against
its Python copy, metric names, machine paths, README files. Prints file:line: finding; exits 1 on any.

  python3 tests/lint.py          the repository
  python3 tests/lint.py ROOT     another tree
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))

from lint import abi, includes, metrics, sizes, text  # noqa: E402

CHECKS = (sizes.check, includes.check, text.check, abi.check, metrics.check)
SKIPPED_FOLDERS = {"build", "node_modules", "out", "__pycache__"}


def files_of(root: pathlib.Path) -> list[pathlib.Path]:
    """What git tracks or would add; without git, everything outside of build folders."""
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=False)
    if listing.returncode == 0:
        names = [pathlib.Path(name) for name in listing.stdout.decode().split("\0") if name]
    else:
        names = [path.relative_to(root) for path in root.rglob("*")
                 if not SKIPPED_FOLDERS & set(path.parts) and not any(part.startswith(".") for part in path.parts)]
    return sorted(name for name in names if (root / name).is_file())


def main(root: pathlib.Path) -> int:
    files = files_of(root)
    findings = [finding for check in CHECKS for finding in check(root, files)]
    for finding in findings:
        print(finding)
    print(f"lint: {len(files)} files, {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()))
