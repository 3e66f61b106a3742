# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""ns_runner as a process that is asked for times, and the operations that Newton-Schulz needs."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
JORDAN = (3.4445, -4.7750, 2.0315)
STEPS = 5
FORMS = ("standard", "gram")


class Runner:
    """ns_runner, the other process."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen([ROOT / "build/release/bin/ns_runner"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, bufsize=1,
                                         env={**os.environ, **environment})

    def __call__(self, *command: object) -> float:
        """Milliseconds."""
        self._process.stdin.write(" ".join(map(str, command)) + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"ns_runner ended at: {command}")
        return float(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def needed_flops(form: str, rows: int, cols: int) -> float:
    s, a = min(rows, cols), max(rows, cols) / min(rows, cols)
    # s^3 each: standard 3a + 1 a step; Gram with one restart 6a, and 14 on the smaller side.
    return s**3 * (STEPS * (3 * a + 1) if form == "standard" else 6 * a + 4 * STEPS - 6)
