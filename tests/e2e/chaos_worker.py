# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""One worker of the chaos test, as a program: HSDP by hand, on gradients that depend on the parameters, so that
an error never heals. Writes what the service tells it into a history (history.py).

It speaks the C ABI itself and knows no torch, for it is started often and torch takes seconds.

    chaos_worker.py '{"rank": 0, "world_size": 6, "node": 0, "address": ..., "job": ..., "steps": 9, "history": ...,
                      "over": FILE, "end": FILE, "replication": 1, "save_every": 3, "load": "step-3"}'

It stays until `over` exists, so that a worker or a node that is killed last finds the others when it comes back. `end` may say
later on that there are fewer steps. With `save_every` it calls for a checkpoint `step-N` after each so many steps, and with `load`
it begins with one.
"""

import ctypes
import hashlib
import json
import os
import pathlib
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python/dmuon_client", "tests/support"):
    sys.path.insert(0, str(ROOT / folder))

import _abi  # noqa: E402
from history import History  # noqa: E402

SHARDS = 2  # ranks r and r + SHARDS hold the same rows
TENSORS = {"tall": (29, 8), "wide": (8, 40), "square": (16, 16), "few": (3, 12), "long": (64, 4), "big": (24, 32),
           "bias": (5,)}
HYPERS = ((0.02, 0.01, 0.95, 0.0), (0.003, 0.0, 0.9, 0.95))
CONNECT_MS, CALL_MS, POLL_MS = 10_000, 1_500, 500
BACKWARD_SECONDS = 0.003
# With others away these come, and the call is made again; any other error ends the worker.
OTHERS_AWAY = (_abi.DMUON_DEADLINE_EXCEEDED, _abi.DMUON_PEER_LOST, _abi.DMUON_UNAVAILABLE)  # the daemon is dead just now


def made(kind: type, **fields) -> ctypes.Structure:
    return kind(struct_size=ctypes.sizeof(kind), **fields)


class StateLost(Exception):
    """What is to be restored is not lost."""


class Worker:
    def __init__(self, rank: int, world_size: int, node: int, address: str, job: str, steps: int, history: str,
                 over: str, replication: int, end: str = "", save_every: int = 0, load: str = "",
                 checkpoint_every_steps: int = 0, checkpoint_keep: int = 1, pause_seconds: float = 0.0) -> None:
        self._save_every, self._load = save_every, load
        self._rank, self._steps, self._over, self._end = rank, steps, pathlib.Path(over), end
        self._pause_seconds = pause_seconds  # between steps
        self._replica, self._shard = divmod(rank, SHARDS)
        self._history = History(pathlib.Path(history), rank=rank, node=node, shard=self._shard, life=os.getpid())
        self._library = _abi.load()
        self._client = ctypes.c_void_p()
        config = made(_abi.dmuon_config, address=address.encode(), job_id=job.encode(), rank=rank,
                      world_size=world_size, missing_gradient=_abi.DMUON_MISSING_ERROR,
                      connect_timeout_ms=CONNECT_MS, call_timeout_ms=CALL_MS, replication=replication,
                      checkpoint_every_steps=checkpoint_every_steps, checkpoint_keep=checkpoint_keep)
        self._insist(self._library.dmuon_open, ctypes.byref(config), ctypes.byref(self._client))
        self._all = (ctypes.c_uint32 * len(TENSORS))(*range(len(TENSORS)))

    def _insist(self, function, *arguments, **fields) -> None:
        """Calls until nobody is away."""
        while not self._called(function(*arguments), **fields):
            pass

    def _called(self, status: int, **fields) -> bool:
        if status == _abi.DMUON_OK:
            return True
        code = self._library.dmuon_status_name(status).decode()
        message = self._library.dmuon_last_error().decode(errors="replace")
        self._history.add("failed", code=code, message=message, **fields)
        if status == _abi.DMUON_STATE_LOST and self._load:
            raise StateLost
        if status not in OTHERS_AWAY:
            raise SystemExit(f"rank {self._rank}: {code}: {message}")
        return False

    def run(self) -> None:
        self._describe()
        last = self._begin()
        if self._load:
            last = self._restore()
        self._history.add("begun", step=last, digest=self._digest())
        step = last
        while step < self._last():
            step += 1
            time.sleep(self._pause_seconds)
            self._step(step)
            if self._save_every and step % self._save_every == 0:
                self._insist(self._library.dmuon_save, self._client, f"step-{step}".encode(), POLL_MS)
        while not self._over.exists():
            time.sleep(0.1)
            self._ask_again()
        self._library.dmuon_close(self._client)

    def _begin(self) -> int:
        """The step that the job is at."""
        info = made(_abi.dmuon_plan_info)
        self._insist(self._library.dmuon_register, self._client, POLL_MS, ctypes.byref(info))
        self._history.add("registered", generation=info.generation, matrices=info.matrix_units)
        self._params = [self._buffer(self._library.dmuon_param_buffer, t) for t in self._all]
        self._grads = [self._buffer(self._library.dmuon_grad_buffer, t) for t in self._all]
        start = np.random.default_rng(self._shard)
        for param in self._params:
            param[:] = start.standard_normal(param.size, np.float32)
        last, resumed = ctypes.c_uint64(), ctypes.c_int32()
        self._insist(self._library.dmuon_begin, self._client, POLL_MS, ctypes.byref(last), ctypes.byref(resumed))
        return last.value

    def _restore(self) -> int:
        """The checkpoint's step. A job that is lost meanwhile begins anew, as dmuon_restore says."""
        step, begun = ctypes.c_uint64(), True
        while True:
            try:
                if not begun:
                    self._begin()
                begun = True
                self._insist(self._library.dmuon_restore, self._client, self._load.encode(), POLL_MS, ctypes.byref(step))
                return step.value
            except StateLost:
                begun = False

    def _last(self) -> int:
        if self._end and pathlib.Path(self._end).exists():
            self._steps = int(pathlib.Path(self._end).read_text())
        return self._steps

    def _ask_again(self) -> None:
        """For the last step: so a daemon that is started again after it finds its workers. It may be in flight from the last time,
        and nobody but who waits for it sees that the daemon is gone."""
        hypers = (_abi.dmuon_hyper * len(HYPERS))(*HYPERS)
        self._library.dmuon_step(self._client, self._steps, hypers, len(hypers))
        result = made(_abi.dmuon_step_result)
        self._library.dmuon_wait(self._client, self._steps, POLL_MS, ctypes.byref(result))

    def _describe(self) -> None:
        for name, algorithm in (("matrices", _abi.DMUON_MUON), ("others", _abi.DMUON_ADAMW)):
            fields = _abi.DMUON_GROUP_INIT | {"name": name.encode(), "algorithm": algorithm}
            group = made(_abi.dmuon_group, **fields)
            self._insist(self._library.dmuon_add_group, self._client, ctypes.byref(group),
                         ctypes.byref(ctypes.c_uint32()))
        sizes = ctypes.c_int64 * _abi.DMUON_MAX_DIMS
        for name, shape in TENSORS.items():
            first, end = (shape[0] * shard // SHARDS for shard in (self._shard, self._shard + 1))
            box = _abi.dmuon_box(sizes(first), sizes(end - first, *shape[1:]))
            tensor = made(_abi.dmuon_tensor, name=name.encode(), ndim=len(shape), shape=sizes(*shape),
                          param_dtype=_abi.DMUON_FLOAT32, grad_dtype=_abi.DMUON_FLOAT32,
                          group=int(len(shape) == 1), grad_box=box, param_box=box, reduced=0)
            self._insist(self._library.dmuon_add_tensor, self._client, ctypes.byref(tensor),
                         ctypes.byref(ctypes.c_uint32()))

    def _buffer(self, function, tensor: int) -> np.ndarray:
        """A view of the arena."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._insist(function, self._client, tensor, ctypes.byref(data), ctypes.byref(size))
        return np.frombuffer((ctypes.c_ubyte * size.value).from_address(data.value), np.float32)

    def _digest(self) -> str:
        return hashlib.blake2b(b"".join(param.tobytes() for param in self._params), digest_size=8).hexdigest()

    def _step(self, step: int) -> None:
        draw = np.random.default_rng((step, self._rank))
        for grad, param in zip(self._grads, self._params, strict=True):
            grad[:] = draw.standard_normal(param.size, np.float32) + np.float32(0.1) * param
        hypers = (_abi.dmuon_hyper * len(HYPERS))(*HYPERS)
        result = made(_abi.dmuon_step_result)
        done = False
        while not done:
            self._history.add("asked", step=step)
            self._submit(step)
            self._insist(self._library.dmuon_step, self._client, step, hypers, len(hypers))
            status = _abi.DMUON_DEADLINE_EXCEEDED
            while not done and status == _abi.DMUON_DEADLINE_EXCEEDED:
                status = self._library.dmuon_wait(self._client, step, POLL_MS, ctypes.byref(result))
                done = self._called(status, step=step)
        self._history.add("done", step=result.step, skipped=result.skipped, replayed=result.replayed,
                          grad_norm=result.grad_norm, calls=result.newton_schulz_calls, digest=self._digest())

    def _submit(self, step: int) -> None:
        """Every other step as backward does, which the service need not wait for."""
        if step % 2 == 0:
            return self._insist(self._library.dmuon_submit, self._client, self._all, len(self._all), step)
        self._insist(self._library.dmuon_expect_gradients, self._client, step)
        for tensor in reversed(self._all):
            self._insist(self._library.dmuon_submit, self._client, ctypes.byref(ctypes.c_uint32(tensor)), 1, step)
        time.sleep(BACKWARD_SECONDS)


if __name__ == "__main__":
    Worker(**json.loads(sys.argv[1])).run()
