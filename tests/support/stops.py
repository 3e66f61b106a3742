# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A run whose workers stop after some steps until a thread beside them has done what is to be done there."""

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from dmuon_fixtures import PATIENCE_SECONDS, await_file


def stop(folder: str, step: int, rank: int) -> None:
    """A worker's side."""
    pathlib.Path(folder, f"{step}.{rank}").touch()
    await_file(pathlib.Path(folder, f"{step}.done"))


@contextlib.contextmanager
def beside(folder: pathlib.Path, workers: int, calls: Mapping[int, Sequence[Callable[[], object]]]) -> Iterator[None]:
    """`calls`: by step, in order of both. What is raised there is raised here in the end, and lets the workers wait in vain."""
    raised: list[BaseException] = []

    def operate() -> None:
        try:
            for step, of_step in calls.items():
                for rank in range(workers):
                    await_file(folder / f"{step}.{rank}")
                for call in of_step:
                    call()
                (folder / f"{step}.done").touch()
        except BaseException as error:  # the thread's, for who waits for it
            raised.append(error)

    thread = threading.Thread(target=operate)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_SECONDS)
        if raised:
            raise raised[0]
