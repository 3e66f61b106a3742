# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Which parameters a forward needs, and with sync=False the hooks that make it wait for them.

    group   parameters that FSDP gathers together, or of a module that the user names: a forward in
            their modules waits for them
    rest    parameters of no group: the first forward of any module of the model waits for them

Parameters are registered, and so published, in the order in which a forward comes to their groups: what
the first forward needs arrives first, wherever the model defines it.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

_REST = None


@dataclasses.dataclass
class _Group:
    tensors: set[int]
    waiting: bool = False  # one of them is still on its way


class Groups:
    """Which tensors each module of a model needs.

    With FSDP2 the groups are its own, one a call of fully_shard. Without it they are the modules of
    `overlap`. A group is what lies in its modules and in no other group's module below them. A
    parameter that several modules hold is in the group of each.

    `numbers` is the order of the parameters, by id(): the rest, then the groups as the model's modules lead
    to them, from 0; within a group as they were given.
    """

    def __init__(self, model: nn.Module, params: Iterable[nn.Parameter], overlap: Sequence[nn.Module]) -> None:
        """`params`: what the service holds. ValueError when `overlap` does not fit the model."""
        modules = set(model.modules())
        if overlap and any(isinstance(module, FSDPModule) for module in modules):
            raise ValueError("overlap is for models without fully_shard, whose own groups are used instead")
        for i, module in enumerate(overlap):
            if module not in modules:
                raise ValueError(f"overlap[{i}], a {type(module).__name__}, is not part of the model")
        self._overlap = set(overlap)
        self._owners: dict[nn.Module, set[Hashable]] = {}
        members: dict[Hashable, set[int]] = {_REST: set()}  # of each group, by id()
        self._visit(model, _REST, members)
        held = [id(param) for param in params]
        order = [param for group in members.values() for param in held if param in group]
        self.numbers = {param: number for number, param in enumerate(dict.fromkeys(order))}
        self._groups = {owner: _Group({self.numbers[param] for param in group if param in self.numbers})
                        for owner, group in members.items()}

    def mark(self, undelivered: set[int]) -> None:
        """Which tensors are on their way now."""
        for group in self._groups.values():
            group.waiting = not group.tensors.isdisjoint(undelivered)

    def needed(self, module: nn.Module) -> set[int]:
        """Numbers of the tensors that must be there before `module` runs."""
        owners = {_REST} | self._owners[module]
        for unit in self._owners[module] - self._overlap - {_REST}:
            # Explicit prefetch gathers other groups before their own hooks run. FSDP2 has no public way
            # to ask for it, and it may be set at any time.
            owners.update(unit._states_to_forward_prefetch, unit._states_to_backward_prefetch)
        return set().union(*(self._groups[owner].tensors for owner in owners if owner in self._groups))

    def guard(self, before_forward: Callable[[nn.Module], None], before_all: Callable[[], object]) -> None:
        """Calls `before_forward(module)` before a module of the model runs or gathers its parameters while
        one that it needs is on its way, and `before_all()` before a state_dict is made."""
        # A break in a graph of torch.compile, which would take what it changes for constant; where nothing
        # is on its way the graph goes on.
        before_forward = torch.compiler.disable(before_forward)
        for module, owners in self._owners.items():
            groups = [self._groups[owner] for owner in {_REST} | owners]
            # Before FSDP's own hook, which gathers the parameters.
            module.register_forward_pre_hook(_hook(before_forward, groups), prepend=True)
            module.register_state_dict_pre_hook(lambda *_: before_all())
            if isinstance(module, FSDPModule):
                module.unshard = _after(functools.partial(before_forward, module), module.unshard)
        torch.compiler.reset()  # what has been compiled before knows nothing of the hooks

    def _visit(self, module: nn.Module, owner: Hashable, members: dict[Hashable, set[int]]) -> None:
        if module in self._overlap:
            owner = module
        elif isinstance(module, FSDPModule):
            owner = _unit(module)
        seen = self._owners.setdefault(module, set())
        if owner in seen:
            return
        seen.add(owner)
        group = members.setdefault(owner, set())
        for param in module.parameters(recurse=False):
            # What FSDP was told to ignore is not gathered, so that anybody may use it.
            ignored = not self._overlap and not isinstance(param, DTensor)
            (members[_REST] if ignored else group).add(id(param))
        for child in module.children():
            self._visit(child, owner, members)


def _unit(module: FSDPModule) -> Hashable:
    """What gathers the module's parameters; the modules of one fully_shard([...]) share it. It is private
    to FSDP2: should a torch not have it, its parameters belong to the rest."""
    state = getattr(module, "_get_fsdp_state", lambda: None)()
    known = hasattr(state, "_states_to_forward_prefetch") and hasattr(state, "_states_to_backward_prefetch")
    return state if known else _REST


def _hook(before_forward: Callable[[nn.Module], None], groups: Sequence[_Group]) -> Callable[..., None]:
    def hook(module: nn.Module, *_: object) -> None:
        # What FSDP gathers with its own group, only before_forward knows.
        if isinstance(module, FSDPModule) or any(group.waiting for group in groups):
            before_forward(module)
    return hook


def _after(first: Callable[[], None], call: Callable) -> Callable:
    @functools.wraps(call)
    def both(*args, **kwargs):
        first()
        return call(*args, **kwargs)
    return both
