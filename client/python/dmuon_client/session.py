# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""One worker's session with the daemon: dmuon.h with Python types and exceptions."""

import atexit
import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch

from dmuon_client import _abi
from dmuon_client.views import Matrices

# Of one wait inside the library, so that Ctrl-C is noticed between two.
_SLICE_MS = 500
_DTYPES = {torch.float32: _abi.DMUON_FLOAT32, torch.bfloat16: _abi.DMUON_BFLOAT16}


class DmuonError(RuntimeError):
    """What the service answered. `status` is a DMUON_ value, `code` its name."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code


class Reattached(Exception):
    """The arena was replaced: fetch the buffers, fill, submit and start the same step again."""


class Stale(Exception):
    """Ownership moved: register again, then as for Reattached."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What became of a step."""

    step: int
    skipped: bool  # a gradient was not finite: nothing changed on any worker
    replayed: bool  # it had been applied before and was only delivered again
    grad_norm: float  # over all tensors and workers, before clipping; NaN when skipped
    clip: float  # factor that clipping applied
    newton_schulz_calls: int  # of the job on this node, since its start
    service_seconds: float  # last worker's arrival to the daemon's answer


@dataclasses.dataclass(frozen=True)
class RowFactors:
    """Factors on stretches of rows of a tensor, after the update of a step."""

    tensor: int
    first_row: int
    rows_each: int
    factors: Sequence[float]  # in (0, 1]


@dataclasses.dataclass(frozen=True)
class PlanInfo:
    """What the plan says to a worker."""

    generation: int
    matrix_units: int
    elementwise_units: int
    arena_bytes: int
    nodes: int = 1  # of the job
    first_rank: int = 0  # among the workers of this node


def dtype_code(name: str, dtype: torch.dtype) -> int:
    """TypeError naming the parameter when the service does not take `dtype`."""
    if dtype not in _DTYPES:
        raise TypeError(f"{name} is {dtype}; the service takes torch.float32 and torch.bfloat16")
    return _DTYPES[dtype]


class Session:
    """Owns the library's client. One thread at a time. A forked child must leave it alone.

    The job's state outlives the session unless `close` ends it: an exception, a signal or os._exit
    leave it for a restarted worker.
    """

    def __init__(self, *, job: str, rank: int, world_size: int, address: str | None,
                 max_grad_norm: float, missing_gradient: int, timeout: float,
                 connect_timeout: float, autotune: int, checkpoint_every_steps: int = 0,
                 checkpoint_every_seconds: float = 0.0, checkpoint_keep: int = 3,
                 replication: int = _abi.DMUON_REPLICATION_NONE) -> None:
        self._library = _abi.load()
        self._pid = os.getpid()
        self._timeout = timeout
        self.waited_seconds = 0.0  # in wait and wait_params; the owner may set it back
        self.state_lost = False  # the daemon came back without the job: register, begin, and it is a new one
        self._unsettled: dict[str, None] = {}  # checkpoints of which nobody knows yet whether they exist
        self._client = ctypes.c_void_p()
        config = _abi.dmuon_config(
            ctypes.sizeof(_abi.dmuon_config), address.encode() if address else None, job.encode(),
            rank, world_size, max_grad_norm, missing_gradient, int(connect_timeout * 1000),
            int(timeout * 1000), autotune, checkpoint_every_steps, checkpoint_every_seconds, checkpoint_keep,
            replication)
        self._check(self._library.dmuon_open(ctypes.byref(config), ctypes.byref(self._client)))
        atexit.register(self._close_at_exit)

    def add_group(self, name: str, *, polynomials: Sequence[Sequence[float]] = (), **fields: int | float) -> int:
        numbers = [number for triple in polynomials for number in triple]
        group = _abi.dmuon_group(struct_size=ctypes.sizeof(_abi.dmuon_group), name=name.encode(),
                                 polynomials=(ctypes.c_double * len(numbers))(*numbers),
                                 polynomial_count=len(polynomials), **fields)
        return self._add(self._library.dmuon_add_group, group)

    def add_tensor(self, name: str, *, shape: Sequence[int], dtype: int, group: int,
                   offset: Sequence[int], length: Sequence[int], reduced: bool,
                   matrices: Matrices = Matrices()) -> int:
        if len(shape) > _abi.DMUON_MAX_DIMS:
            raise ValueError(f"{name} has {len(shape)} dimensions; at most {_abi.DMUON_MAX_DIMS}")
        sizes = ctypes.c_int64 * _abi.DMUON_MAX_DIMS
        box = _abi.dmuon_box(sizes(*offset), sizes(*length))
        blocks = (ctypes.c_int64 * len(matrices.row_blocks))(*matrices.row_blocks)
        tensor = _abi.dmuon_tensor(
            ctypes.sizeof(_abi.dmuon_tensor), name.encode(), len(shape), sizes(*shape), dtype, dtype,
            group, box, box, int(reduced), blocks, len(blocks), matrices.view, matrices.row_repeats)
        return self._add(self._library.dmuon_add_tensor, tensor)

    def _add(self, function, item: ctypes.Structure) -> int:
        index = ctypes.c_uint32()
        self._check(function(self._client, ctypes.byref(item), ctypes.byref(index)))
        return index.value

    def register(self) -> PlanInfo:
        """Waits for every worker of the job, then for the plan."""
        info = _abi.dmuon_plan_info(struct_size=ctypes.sizeof(_abi.dmuon_plan_info))
        self._check(self._library.dmuon_register(self._client, self._timeout_ms, ctypes.byref(info)))
        return PlanInfo(info.generation, info.matrix_units, info.elementwise_units, info.arena_bytes,
                        info.nodes, info.first_rank)

    def begin(self) -> tuple[int, bool]:
        """(last applied step, whether the parameter buffers now hold the service's parameters)."""
        last_step, resumed = ctypes.c_uint64(), ctypes.c_int32()
        self._check(self._library.dmuon_begin(self._client, self._timeout_ms, ctypes.byref(last_step),
                                              ctypes.byref(resumed)))
        self.state_lost = False
        return last_step.value, bool(resumed.value)

    def grad_buffer(self, tensor: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._buffer(self._library.dmuon_grad_buffer, tensor, shape, dtype)

    def param_buffer(self, tensor: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._buffer(self._library.dmuon_param_buffer, tensor, shape, dtype)

    def _buffer(self, function, tensor: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A view of the arena, valid until close or Reattached."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._check(function(self._client, tensor, ctypes.byref(data), ctypes.byref(size)))
        if size.value == 0:
            return torch.empty(shape, dtype=dtype)
        memory = (ctypes.c_ubyte * size.value).from_address(data.value)
        return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))

    def expect_gradients(self, step: int) -> None:
        """Gradients of `step` are submitted one by one from now on, while others are computed."""
        self._check(self._library.dmuon_expect_gradients(self._client, step))

    def submit(self, tensors: Sequence[int], step: int) -> None:
        """The gradients of these tensors are in their buffers."""
        array = (ctypes.c_uint32 * len(tensors))(*tensors)
        self._check(self._library.dmuon_submit(self._client, array, len(tensors), step))

    def submit_missing(self, tensors: Sequence[int], step: int) -> None:
        array = (ctypes.c_uint32 * len(tensors))(*tensors)
        self._check(self._library.dmuon_submit_missing(self._client, array, len(tensors), step))

    def start(self, step: int, hypers: Sequence[tuple[float, float, float, float]],
              row_factors: Sequence[RowFactors] = ()) -> None:
        """Starts a step; `hypers` are (lr, weight decay, momentum or beta1, beta2) of each group."""
        for rows in row_factors:
            factors = (ctypes.c_double * len(rows.factors))(*rows.factors)
            self._check(self._library.dmuon_multiply_rows(self._client, rows.tensor, rows.first_row, rows.rows_each,
                                                          factors, len(rows.factors)))
        array = (_abi.dmuon_hyper * len(hypers))(*hypers)
        self._check(self._library.dmuon_step(self._client, step, array, len(hypers)))

    def wait(self, step: int) -> StepResult:
        """Until the parameter buffers carry `step`."""
        result = _new_result()
        self._await_params(lambda slice_ms: self._library.dmuon_wait(self._client, step, slice_ms,
                                                                     ctypes.byref(result)))
        return _to_python(result)

    def poll(self, step: int) -> StepResult | None:
        """`wait` that does not wait: None while the step goes on. So it does after a
        DMUON_DEADLINE_EXCEEDED of the daemon, which `wait` tells when it comes again."""
        result = _new_result()
        status = self._library.dmuon_wait(self._client, step, 0, ctypes.byref(result))
        if status == _abi.DMUON_DEADLINE_EXCEEDED:
            return None
        self._check(status)
        return _to_python(result)

    def wait_params(self, tensors: Sequence[int], step: int) -> None:
        """Until the parameter buffers of these tensors carry `step`; others may be on their way, and
        `wait` still comes after it. A step that was skipped is over for all tensors."""
        array = (ctypes.c_uint32 * len(tensors))(*tensors)
        self._await_params(lambda slice_ms: self._library.dmuon_wait_params(self._client, array, len(tensors), step,
                                                                            slice_ms))

    def _await_params(self, call: Callable[[int], int]) -> None:
        begun = time.monotonic()
        try:
            self._await(call)
        finally:
            self.waited_seconds += time.monotonic() - begun

    def _await(self, call: Callable[[int], int]) -> None:
        # The library gives up at the timeout with a better message; this is the net under it.
        deadline = time.monotonic() + self._timeout + 5.0
        while True:
            started = time.monotonic()
            status = call(_SLICE_MS)
            now = time.monotonic()
            # An early DMUON_DEADLINE_EXCEEDED is the daemon's own and says who is missing.
            of_slice = status == _abi.DMUON_DEADLINE_EXCEEDED and now - started >= _SLICE_MS / 1000
            if not of_slice or now >= deadline:
                break
        self._check(status)

    def save(self, name: str) -> None:
        """Makes a checkpoint of the last applied step: until this node's state has been copied."""
        encoded = _encode(name)
        self._await(lambda slice_ms: self._library.dmuon_save(self._client, encoded, slice_ms))
        self._unsettled[name] = None

    def wait_saved(self, name: str) -> None:
        """Until a checkpoint that `save` has begun exists. DmuonError says why it does not, or after the timeout
        that it does not yet."""
        encoded, deadline = _encode(name), time.monotonic() + self._timeout
        while True:
            status = self._library.dmuon_wait_saved(self._client, encoded, _SLICE_MS)
            if status != _abi.DMUON_DEADLINE_EXCEEDED:
                self._unsettled.pop(name, None)
                break
            if time.monotonic() >= deadline:
                break
        self._check(status)

    def warn_of_saves(self) -> None:
        """Waits for the checkpoints that `save` has begun, and warns of each that could not be written, unless
        `wait_saved` has told it."""
        lost = None
        for name in list(self._unsettled):
            try:
                if lost:
                    raise lost
                self.wait_saved(name)
            except (DmuonError, Reattached, Stale) as error:
                self._unsettled.pop(name, None)
                if isinstance(error, DmuonError) and error.status == _abi.DMUON_UNAVAILABLE:
                    lost = error  # asked once, not once for each
                warnings.warn(f"checkpoint {name} is not known to exist: {error}", RuntimeWarning, stacklevel=3)

    def restore(self, name: str) -> int:
        """Puts a checkpoint in place of the job's state and its parameters into the parameter buffers; its step. One
        that `save` has begun is waited for."""
        if name in self._unsettled:
            self.wait_saved(name)
        encoded, last_step = _encode(name), ctypes.c_uint64()
        self._await(lambda slice_ms: self._library.dmuon_restore(self._client, encoded, slice_ms,
                                                                 ctypes.byref(last_step)))
        return last_step.value

    @contextlib.contextmanager
    def exported_state(self) -> Iterator[torch.Tensor]:
        """The bytes of this node's part of the state, `part.read` has their meaning; valid inside the block, and not to
        be written to."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._await(lambda slice_ms: self._library.dmuon_export_state(self._client, slice_ms, ctypes.byref(data),
                                                                      ctypes.byref(size)))
        try:
            yield torch.frombuffer((ctypes.c_ubyte * size.value).from_address(data.value), dtype=torch.uint8)
        finally:
            self._check(self._library.dmuon_release_state(self._client))

    def import_state(self, fd: int, digest: str) -> int:
        """Puts a state in place of the job's and its parameters into the parameter buffers; its step. `fd`: the sealed
        memfd that it is in, or -1 where another worker brings it."""
        last_step = ctypes.c_uint64()
        self._await(lambda slice_ms: self._library.dmuon_import_state(self._client, fd, digest.encode(), slice_ms,
                                                                      ctypes.byref(last_step)))
        return last_step.value

    @property
    def version(self) -> str:
        """Of the library."""
        return self._library.dmuon_version().decode()

    def close(self) -> None:
        """Ends the session in order, when checkpoints are written. When every worker of the job has, the daemon drops
        the state."""
        if self._client and self._pid == os.getpid():
            self.warn_of_saves()
            atexit.unregister(self._close_at_exit)
            client, self._client = self._client, ctypes.c_void_p()
            self._library.dmuon_close(client)

    def _close_at_exit(self) -> None:
        # The interpreter leaves an exception that ended the program in sys.last_type; a restarted
        # program will want the state then. A child of multiprocessing cannot tell how it ends.
        if getattr(sys, "last_type", None) is None and multiprocessing.parent_process() is None:
            self.close()

    @property
    def closed(self) -> bool:
        return not self._client

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout * 1000)

    def _check(self, status: int) -> None:
        if status == _abi.DMUON_OK:
            return
        message = (self._library.dmuon_last_error() or b"").decode(errors="replace")
        if status == _abi.DMUON_REATTACHED:
            raise Reattached(message)
        if status == _abi.DMUON_STALE_GENERATION:
            raise Stale(message)
        self.state_lost = self.state_lost or status == _abi.DMUON_STATE_LOST
        code = self._library.dmuon_status_name(status).decode()
        raise DmuonError(status, code, message)


def _encode(name: str) -> bytes:
    """A C string ends at a NUL, and the name that is left might be a good one."""
    if not isinstance(name, str) or "\0" in name:
        raise ValueError(f"checkpoint name {name!r}; it must be 1 to 128 of a-z 0-9 . _ -, the first a letter or digit")
    return name.encode()


def _new_result() -> _abi.dmuon_step_result:
    return _abi.dmuon_step_result(struct_size=ctypes.sizeof(_abi.dmuon_step_result))


def _to_python(result: _abi.dmuon_step_result) -> StepResult:
    return StepResult(result.step, bool(result.skipped), bool(result.replayed), result.grad_norm,
                      result.clip, result.newton_schulz_calls, result.service_seconds)
