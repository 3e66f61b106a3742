# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""sync=False: which parameters a forward waits for, and the hooks that make it wait.

    group   parameters that FSDP gathers together, or of a module that the user names: a forward in
            their modules waits for them
    rest    parameters of no group: the first forward of any module of the model waits for them
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

_REST = None


class Groups:
    """Which tensors each module of a model needs.

    With FSDP2 the groups are its own, one a call of fully_shard. Without it they are the modules of
    `overlap`. A group is what lies in its modules and in no other group's module below them. A
    parameter that several modules hold is in the group of each.
    """

    def __init__(self, model: nn.Module, numbers: Mapping[int, int], overlap: Sequence[nn.Module]) -> None:
        """`numbers`: of each parameter that the service holds, by id(). ValueError when `overlap` does
        not fit the model."""
        modules = set(model.modules())
        if overlap and any(isinstance(module, FSDPModule) for module in modules):
            raise ValueError("overlap is for models without fully_shard, whose own groups are used instead")
        for i, module in enumerate(overlap):
            if module not in modules:
                raise ValueError(f"overlap[{i}], a {type(module).__name__}, is not part of the model")
        self._numbers = numbers
        self._overlap = set(overlap)
        self._owners: dict[nn.Module, set[Hashable]] = {}
        self._members: dict[Hashable, set[int]] = {_REST: set()}
        self._visit(model, _REST)

    def needed(self, module: nn.Module) -> set[int]:
        """Numbers of the tensors that must be there before `module` runs."""
        owners = {_REST} | self._owners[module]
        for unit in self._owners[module] - self._overlap - {_REST}:
            # Explicit prefetch gathers other groups before their own hooks run. FSDP2 has no public way
            # to ask for it, and it may be set at any time.
            owners.update(unit._states_to_forward_prefetch, unit._states_to_backward_prefetch)
        return set().union(*(self._members.get(owner, ()) for owner in owners))

    def _visit(self, module: nn.Module, owner: Hashable) -> None:
        if module in self._overlap:
            owner = module
        elif isinstance(module, FSDPModule):
            owner = _unit(module)
        seen = self._owners.setdefault(module, set())
        if owner in seen:
            return
        seen.add(owner)
        for param in module.parameters(recurse=False):
            # What FSDP was told to ignore is not gathered, so that anybody may use it.
            ignored = not self._overlap and not isinstance(param, DTensor)
            if id(param) in self._numbers:
                self._members.setdefault(_REST if ignored else owner, set()).add(self._numbers[id(param)])
        for child in module.children():
            self._visit(child, owner)


def guard(model: nn.Module, before_forward: Callable[[nn.Module], None], before_all: Callable[[], object]) -> None:
    """Calls `before_forward(module)` before any module of the model runs or gathers its parameters, and
    `before_all()` before a state_dict is made."""
    def forward(module: nn.Module, *_: object) -> None:
        before_forward(module)

    def state_dict(*_: object) -> None:
        before_all()

    for module in model.modules():
        # Before FSDP's own hook, which gathers the parameters.
        module.register_forward_pre_hook(forward, prepend=True)
        module.register_state_dict_pre_hook(state_dict)
        if isinstance(module, FSDPModule):
            module.unshard = _after(functools.partial(before_forward, module), module.unshard)


def _unit(module: FSDPModule) -> Hashable:
    """What gathers the module's parameters; the modules of one fully_shard([...]) share it. FSDP2 keeps
    it private: a torch that has it no longer waits for everything at once."""
    state = getattr(module, "_get_fsdp_state", lambda: None)()
    known = hasattr(state, "_states_to_forward_prefetch") and hasattr(state, "_states_to_backward_prefetch")
    return state if known else _REST


def _after(first: Callable[[], None], call: Callable) -> Callable:
    @functools.wraps(call)
    def both(*args, **kwargs):
        first()
        return call(*args, **kwargs)
    return both
