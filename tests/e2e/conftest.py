# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
import itertools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "client/examples", "tests/support", "tests/e2e"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))

from worker_pool import WorkerPool  # noqa: E402

_numbers = itertools.count()


@pytest.fixture(scope="session")
def pools():
    """pools(n): the session's pool of n workers."""
    made: dict[int, WorkerPool] = {}
    yield lambda size: made.setdefault(size, WorkerPool(size))
    for pool in made.values():
        pool.stop()


@pytest.fixture
def job(request):
    """A job id that no other test has."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60]
    return f"{name}.{next(_numbers)}"
