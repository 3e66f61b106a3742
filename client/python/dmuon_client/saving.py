# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the service, as the trainer asks for them; and how any other state takes the place of the job's."""

import contextlib
from collections.abc import Callable

import torch

from dmuon_client.session import DmuonError


class Saving:
    """Of `Muon`."""

    def save(self, name: str, wait: bool = False) -> None:
        """Makes a checkpoint of what the last step() left, in the service's --checkpoint-dir under the job's id. Every
        worker calls it between the same two steps. Returns when the service has copied the state in its memory, which
        holds one copy at a time: when the one before is written. Training goes on while this one is written. `wait`:
        until it exists, for `timeout` seconds at most.

        `name`: 1 to 128 of a-z 0-9 . _ -, the first a letter or digit; a checkpoint of the same name is replaced, once
        the new one exists. Hyper-parameters of param_groups are not in it: they are in state_dict(). DmuonError when
        the service keeps no checkpoints, or lacks the memory. Whether an earlier one could be written, the next
        save(), wait_saved() or close() tells, save() and close() by a warning.
        """
        self.wait()
        self._session.warn_of_saves()
        self._persist(f"save of {name}", lambda: self._session.save(name))
        self._saved = name
        if wait:
            self.wait_saved()

    def wait_saved(self) -> None:
        """Until the checkpoint of the last save() exists; DmuonError says why it does not. Does nothing before the
        first save()."""
        if self._saved is not None:
            self._session.wait_saved(self._saved)

    @torch.no_grad()
    def load(self, name: str) -> None:
        """Puts a checkpoint of this job id in place of the job's state, its parameters into the model, and its step
        into last_step. Every worker calls it, as it calls step(). Parameters are found by name: number of workers,
        sharding and nodes may differ from when it was saved. What the service does not hold stays: frozen
        parameters, buffers, and learning rates.

        DmuonError naming what is wrong when there is no such checkpoint, when it is damaged, or when it is of another
        model: nothing has changed. After a timeout or a lost peer it must be called again. Also the way on after
        DMUON_STATE_LOST, for a trainer that has outlived the service.
        """
        self._replace_state(f"load of {name}", lambda: self._session.restore(name))

    def _settle(self) -> None:
        """What becomes of a step that is on its way no longer counts."""
        if self._pending is not None:
            with contextlib.suppress(DmuonError):
                self.wait()

    def _replace_state(self, what: str, call: Callable[[], int]) -> None:
        """`call`: the session's, answers the step that the new state is of."""
        self._settle()
        if self._session.state_lost:
            self._register_again()
        self.last_step = self._persist(what, call)
        if self._backward:
            self._backward.take()  # the service has forgotten them
        self._expecting = 0
        self._targets = None
        self.result = None
        self._deliver(self._held)
