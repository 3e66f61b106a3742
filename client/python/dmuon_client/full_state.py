# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The whole state of a job as one dictionary in torch's layout: out of the service, and back in.

Each node's daemon gives its part to its first worker, in memory that both map; between nodes it goes over
torch.distributed. Nothing of it goes through gRPC.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from dmuon_client import checkpoint, part, workers
from dmuon_client.tensors import Tensor

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_SCALES = {None: "original", "original": "original", "match_rms_adamw": "match_rms_adamw"}

_Array = tuple[part.Entry, Sequence[int]]


class FullState:
    """Of `Muon`."""

    def full_state_dict(self, rank0_only: bool = False) -> dict[str, Any]:
        """Everything that the service holds of the job, as of the last step(), in host memory and in the layout of
        torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(full_state_dict=True) for torch.optim.Muon and
        AdamW: every worker calls it; with `rank0_only` the others get {}.

            "state"         by name of the parameter: "momentum_buffer"; of AdamW "exp_avg", "exp_avg_sq" and "step". A
                            momentum that is a sum of gradients is scaled to torch's mean. Optimizers that torch does not
                            have keep the service's names, with "step"; a state that has one array for each matrix is a list
            "param_groups"  with all that torch's optimizers keep there, "params" being names
            "weights"       the fp32 master weights, by name, which the model's parameters may be roundings of
            "step"          the step that all is of

        DmuonError when a daemon lacks the memory for a copy of its part; ValueError where only another worker had one.
        """
        self.wait()
        wanted = not rank0_only or self._rank == 0
        arrays = []
        for data in self._parts(rank0_only):
            arrays += [("a node's part", entry, values.clone()) for entry, values in part.read(data)]
        if not wanted:
            return {}
        found = checkpoint.contents_of(f"job {self.job}", arrays)
        state, weights = {}, {}
        for t in self._tensors:
            contents, name = found[t.route.name], t.route.name
            weights[name] = contents["weight"].reshape(t.route.shape)
            state[name] = {key: _shaped(value, t) for key, value in
                           checkpoint.layout_of(contents, self._momentum_of(t)).items()}
        return {"state": state, "param_groups": [self._torch_group(group) for group in self.param_groups],
                "weights": weights, "step": self.last_step}

    @torch.no_grad()
    def load_full_state_dict(self, state_dict: Mapping[str, Any] | None, *, step: int | None = None,
                             broadcast_from_rank0: bool = False) -> None:
        """Puts a dictionary of `full_state_dict`, or of torch's get_optimizer_state_dict for torch.optim.Muon and AdamW,
        in place of the job's state, its weights into the model, and its step into last_step. Every worker calls it, as it
        calls step(), with the same dictionary; with `broadcast_from_rank0` rank 0 has it and the others give None.

        Parameters are found by name; number of workers, sharding and nodes may be others. Tensors may be DTensors, or
        of other dtypes: fp32 is kept. Without "weights" the model's present parameters are the weights. Without "step",
        `step` says which one it is, or AdamW's states do. What is in param_groups of the dictionary is not taken over;
        these belong to the trainer.

        ValueError or DmuonError naming the parameter, on all workers, when one is missing, unknown, of another shape or
        optimizer, or not finite: nothing has changed. After a timeout or a lost peer it must be called again.
        """
        self._settle()  # the model has what the last step left
        has_one = self._rank == 0 or not broadcast_from_rank0
        arrays: list[tuple[_Array, Any]] = []
        with self._on_all("load_full_state_dict") as told:
            if has_one:
                last_step = self._step_of(state_dict, step)
                arrays = self._arrays_of(state_dict, last_step)
                told["weights"] = state_dict.get("weights") is None
                if broadcast_from_rank0 and any(isinstance(value, DTensor) for _, value in arrays):
                    raise ValueError("broadcast_from_rank0 needs whole tensors, not DTensors")
        of_model = told["all"][0]["weights"]
        if any(info.get("weights", of_model) != of_model for info in told["all"]):
            raise ValueError("some workers' dictionaries have \"weights\", others' not")
        # One on each node, so that daemons need not fetch from others.
        brings = self._is_first and has_one
        fd = os.memfd_create("dmuon-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if brings else -1
        try:
            with self._on_all("load_full_state_dict") as told:
                values = self._values(arrays, of_model)
                if brings:
                    about = {"job": self.job, "name": "state", "step": str(last_step), "node": "client",
                             "generation": str(self.plan.generation), "dmuon_version": self._session.version}
                    told["digest"] = part.write(fd, about, [array for array, _ in arrays], values)
                else:
                    for _ in values:
                        pass  # others may need this worker's piece
            digest = told["all"][0 if broadcast_from_rank0 else self.plan.first_rank]["digest"]
            if fd >= 0:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self._replace_state("load_full_state_dict", lambda: self._session.import_state(fd, digest))
        finally:
            if fd >= 0:
                os.close(fd)

    # -- between the workers -----------------------------------------------------------------------

    _host_group: Any = None

    @property
    def _is_first(self) -> bool:
        """Of the workers of its node."""
        return self._rank == self.plan.first_rank

    def _group_of_host_memory(self) -> Any:
        """A group that takes CPU tensors; None: the default one does. All workers call."""
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(f"job {self.job} has {self._world_size} workers, but torch.distributed has no process group "
                               "any more, by which they could exchange state")
        if "cpu:" in dist.get_backend_config():
            return None
        if self._host_group is None:
            self._host_group = dist.new_group(backend="gloo")
        return self._host_group

    @contextlib.contextmanager
    def _on_all(self, what: str) -> Iterator[dict[str, Any]]:
        """Runs the block on all workers, and raises on all when it fails on one. What the block puts into the dictionary
        is then in its "all", by rank."""
        told: dict[str, Any] = {"first_rank": self.plan.first_rank}
        error = None
        try:
            yield told
        except Exception as caught:  # whatever it is: the others would wait
            error = caught
            told = {"error": f"{type(caught).__name__}: {caught}"}
        if self._world_size == 1:
            everyone = [dict(told)]
        else:
            everyone = [None] * self._world_size
            dist.all_gather_object(everyone, told, group=self._group_of_host_memory())
        if error is not None:
            raise error
        for rank, other in enumerate(everyone):
            if "error" in other:
                raise ValueError(f"{what} failed on rank {rank}: {other['error']}")
        told["all"] = everyone

    def _parts(self, rank0_only: bool) -> Iterator[torch.Tensor]:
        """The bytes of each node's part; each is valid until the next is asked for. All workers take all."""
        if self.plan.nodes == 1:  # the daemon gives all that ask the same copy
            if self._rank == 0 or not rank0_only:
                with contextlib.ExitStack() as stack:
                    yield self._exported(stack)
            return
        with contextlib.ExitStack() as stack:
            data = None
            with self._on_all("full_state_dict") as told:
                if self._is_first:
                    data = self._exported(stack)
                    told["bytes"] = len(data)
            sizes = {info["first_rank"]: told["all"][info["first_rank"]]["bytes"] for info in told["all"]}
            if len(sizes) != self.plan.nodes:
                raise RuntimeError(f"job {self.job} runs on {self.plan.nodes} nodes, but workers are on {len(sizes)}")
            for source, size in sorted(sizes.items()):
                received = workers.send_bytes(data if source == self._rank else None, size, source, 0 if rank0_only else None,
                                              self._group_of_host_memory())
                if received is not None:
                    yield received

    def _exported(self, stack: contextlib.ExitStack) -> torch.Tensor:
        return self._persist("full_state_dict", lambda: stack.enter_context(self._session.exported_state()))

    # -- what is in the dictionary -----------------------------------------------------------------

    def _group_with(self, t: Tensor) -> dict[str, Any]:
        return next(group for group in self.param_groups if group["group_name"] == t.route.group)

    def _momentum_of(self, t: Tensor) -> float | None:
        return self._group_with(t).get("momentum")

    def _torch_group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """As torch's optimizer of such parameters has it; where torch has no word for a setting, its default."""
        o = self._options
        names = [t.route.name for t in self._tensors if t.route.group == group["group_name"]]
        hypers = {key: group[key] for key in ("lr", "weight_decay", "momentum", "betas") if key in group}
        dummy = [torch.nn.Parameter(torch.empty(1, 1))]
        if group["algorithm"] == "adamw":
            known = torch.optim.AdamW(dummy, eps=o.adamw.eps, **hypers)
        else:
            said = {"nesterov": o.nesterov, "eps": o.ns_eps, "ns_steps": o.iterations, "adjust_lr_fn": _SCALES.get(o.scale)}
            if not isinstance(o.coefficients, str | None) and len(o.coefficients) == 1:
                said["ns_coefficients"] = tuple(o.coefficients[0])
            known = torch.optim.Muon(dummy, **hypers, **{key: value for key, value in said.items() if value is not None})
        return {**known.state_dict()["param_groups"][0], "params": names}

    def _step_of(self, state_dict: Mapping[str, Any], step: int | None) -> int:
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("state"), Mapping):
            raise ValueError("a full state dictionary has \"state\", a dictionary by name of the parameter")
        said = state_dict.get("step", step)
        if said is None:
            said = max((int(state["step"]) for state in state_dict["state"].values() if "step" in state), default=None)
        if said is None:
            raise ValueError("the state does not say which step it is of; give step=")
        if said != int(said) or said < 0:
            raise ValueError(f"step is {said}; it must be a whole number")
        return int(said)

    def _arrays_of(self, state_dict: Mapping[str, Any], step: int) -> list[tuple[_Array, Any]]:
        """The weights, then all else; by tensor as the service numbers them. Values are None where they are the model's."""
        state, weights = state_dict["state"], state_dict.get("weights")
        names = {name: t.route.name for t in self._tensors for name in t.route.names}
        for of, given in (("state", state), ("weights", weights or {})):
            if unknown := [name for name in given if name not in names]:
                raise ValueError(f"\"{of}\" has {', '.join(map(str, unknown))}, which the job has not")
        first, then = [], []
        for t in self._tensors:
            with _about(t.route.name):
                optimizer = self._options.optimizer(t.route.route)
                contents = checkpoint.contents_from(_find(state, t, "state"), optimizer, step, self._momentum_of(t))
                about = {"tensor": t.route.name, "tensor_shape": list(t.holding.shape), "optimizer": optimizer,
                         "updates": contents["updates"]}
                weight = None if weights is None else _find(weights, t, "weight")
                first += _whole_array(about, "weight", weight, t)
                for quantity in contents.keys() - {"optimizer", "updates"}:
                    value = contents[quantity]
                    then += (_matrix_arrays if isinstance(value, Sequence) else _whole_array)(about, quantity, value, t)
        return first + sorted(then, key=lambda array: array[0][0].key)

    def _values(self, arrays: Sequence[tuple[_Array, Any]], of_model: bool) -> Iterator[torch.Tensor]:
        """One after the other, so that no more than one distributed tensor is whole at a time."""
        if of_model:
            for t in self._tensors:
                yield _whole(t.param)
        for _, value in arrays[len(self._tensors):] if of_model else arrays:
            yield _whole(value)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


@contextlib.contextmanager
def _about(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error


def _find(given: Mapping[str, Any], t: Tensor, where: str) -> Any:
    for name in t.route.names:
        if name in given:
            return given[name]
    raise ValueError(f"the dictionary has no {where} of it")


def _shaped(value: Any, t: Tensor) -> Any:
    """A scalar parameter counts as one element in one dimension."""
    scalar = not t.route.shape and isinstance(value, torch.Tensor) and value.shape == (1,)
    return value.reshape(()) if scalar else value


def _whole_array(about: Mapping[str, Any], quantity: str, value: torch.Tensor | None, t: Tensor) -> list[tuple[_Array, Any]]:
    if value is not None and (not isinstance(value, torch.Tensor) or tuple(value.shape) != t.route.shape):
        what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"{quantity} is {what}, the parameter has shape {t.route.shape}")
    shape = list(t.holding.shape)
    entry = part.Entry(**about, quantity=quantity, offset=[0] * len(shape), length=shape, matrix=-1)
    return [((entry, shape), value)]


def _matrix_arrays(about: Mapping[str, Any], quantity: str, values: Sequence[torch.Tensor],
                   t: Tensor) -> list[tuple[_Array, Any]]:
    """One array for each matrix; small ones may have no basis."""
    arrays, left = [], list(values)
    for unit in t.route.matrices.units(t.route.shape):
        for matrix, (rows, cols) in enumerate(unit.matrices):
            if not left or (quantity == "basis" and left[0].shape[-1] != min(rows, cols)):
                continue
            value = left.pop(0)
            if len(unit.matrices) == 1 and tuple(value.shape) == (rows, cols):  # as its elements
                entry = part.Entry(**about, quantity=quantity, offset=unit.offset, length=unit.length, matrix=-1)
                arrays.append(((entry, unit.length), value))
            else:
                entry = part.Entry(**about, quantity=quantity, offset=unit.offset, length=unit.length, matrix=matrix)
                arrays.append(((entry, list(value.shape)), value))
    if left:
        raise ValueError(f"{quantity} has {len(values)} arrays, {len(left)} more than there are matrices")
    return arrays
