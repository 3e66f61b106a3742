# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""`Muon`: a torch.optim.Optimizer whose work is done by the service.

    submit   copy each local gradient into the arena, in step() or while backward runs
    step     hand over the hyper-parameters of param_groups and wait
    deliver  copy the new values out of the arena

Everything between is the daemon's. The client holds no optimizer state.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dmuon_client import _abi, backward, handover, options as opts, qk_clip, routing, sharding, tensors, workers
from dmuon_client.full_state import FullState
from dmuon_client.saving import Saving
from dmuon_client.session import DmuonError, PlanInfo, Reattached, RowFactors, Session, Stale, StepResult, dtype_code
from dmuon_client.tensors import Tensor

# A daemon that keeps replacing its arena within one step is broken.
_MAX_ATTEMPTS = 5
_Answer = TypeVar("_Answer")
# After these the step goes on when it is asked for again.
_GOES_ON = (_abi.DMUON_DEADLINE_EXCEEDED, _abi.DMUON_PEER_LOST)


class Muon(Saving, FullState, torch.optim.Optimizer):
    """Muon, or another of its family, for hidden matrices and AdamW for the rest, run by the dmuon service.

    Works for one process, DistributedDataParallel and fully_shard; build it after the model has been
    wrapped and, with several workers, after init_process_group. Keyword arguments are the fields of
    `dmuon_client.options.Options`. If the job already has state in the service, its parameters are
    copied into the model here, `resumed` is True and `last_step` says which step was applied last.

    The service forgets the job when every worker has closed: at `close`, at the end of a `with`
    block without an exception, or at a normal exit of the interpreter. A crash leaves the state for a
    restart with the same job id.
    """

    def __init__(self, model: nn.Module, lr: float | None = None, weight_decay: float | None = None,
                 adamw: Any = None, **keywords: Any) -> None:
        if adamw is not None:
            keywords["adamw"] = adamw
        self._options = opts.Options(lr=lr, weight_decay=weight_decay, **keywords)
        self._options.validate()
        self._rank, self._world_size = workers.rank_and_world_size()
        routes = routing.route_model(model, self._options.rules, self._options.min_dim)
        self._tensors = tensors.describe(model, [r for r in routes if r.route != "frozen"], self._options, self._world_size)
        groups = self._group()
        forward_groups = handover.Groups(model, [t.param for t in self._tensors], self._options.overlap)
        # For any `sync`: the order is part of the plan.
        self._tensors.sort(key=lambda t: forward_groups.numbers[id(t.param)])
        self._attentions = qk_clip.resolve(
            self._options.qk_clip, {t.route.name: (i, t.route.shape) for i, t in enumerate(self._tensors)})
        self._forward_groups = None if self._options.sync else forward_groups
        self._building = True
        super().__init__(groups, {"lr": self._options.lr, "weight_decay": self._options.weight_decay})
        self._building = False
        self.job = workers.job_id(self._options.job, self._rank, self._world_size, self._options.verbose)
        self.result: StepResult | None = None
        self.steps_done = 0
        self._targets: list[torch.Tensor] | None = None  # where the step in flight will be delivered
        self._checked: list[opts.Hyper] = []
        self._saved: str | None = None  # the last checkpoint
        self._pending: int | None = None  # a step that was started and not waited for
        self._held = [i for i, t in enumerate(self._tensors) if not t.holding.empty]
        self._registered = [(t.local_shape, t.dtype, torch.strided, t.placements) for t in self._tensors]
        self._undelivered: set[int] = set()  # of _held, what the model still lacks of the last step
        if self._options.verbose and self._rank == 0:
            print(f"dmuon: job {self.job}, {self._world_size} workers\n{routing.describe(routes)}",
                  flush=True)
        if self._rank == 0 and (elongated := routing.elongated(routes)):
            warnings.warn(
                f"{', '.join(f'{r.name} {r.shape}' for r in elongated)}: one side is 50 or more times the other, "
                "which is an embedding or a head as a rule; Muon orthogonalizes it unless dmuon.Rule('adamw', name=...) "
                "says otherwise, and dmuon.Rule('muon', name=...) ends this warning", stacklevel=2)
        self._expecting = 0  # the step whose gradients the service expects one by one
        self._attach()
        if self._forward_groups:
            self._forward_groups.guard(self._before_forward, self.wait)
        self._backward: backward.Backward | None = None
        if passes := self._options.backward_passes_per_step:
            params = {i: self._tensors[i].param for i in self._held}
            self._backward = backward.Backward(params, passes, self._submit_early)

    # -- torch.optim.Optimizer ---------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, qk_max: Mapping[str, Any] | None = None) -> Any:
        """One step of the job; every worker must call it. Gradients are read, never changed.

        `qk_max`, with qk_clip: for each query (or fused) weight by name, the largest attention logit of each
        head in this worker's forwards since the last step, scaled and before the mask and the softmax; 0 for
        heads of other workers. ValueError on all workers, and nothing changes, when one of them is not finite.

        DmuonError when the service refuses: then nothing has changed on any worker, and the same
        step may be tried again. With sync=False the error comes where the parameters are waited for.
        """
        if self._pending is not None:
            self.wait()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._session.closed:
            raise RuntimeError(f"job {self.job}: the optimizer is closed")
        step = self.last_step + 1
        hypers = self._hypers_now()
        rows = qk_clip.row_factors(self._attentions, qk_max, self._world_size)
        self._session.waited_seconds = 0.0
        if self._options.sync:
            try:
                result = self._run(step, hypers, rows)
            except DmuonError as error:
                self._go_back(error)
                return loss
        else:
            self._submit(step)
            self._session.start(step, hypers, rows)
            self._pending, result = step, None
        self._set_undelivered(self._held)
        if result:
            self._finish(result)
        return loss

    @torch.no_grad()
    def wait(self) -> StepResult | None:
        """Until the parameters of the last step() are in the model; what became of it, or None before
        the first. Does nothing after a step with sync=True.

        DmuonError when the service refused that step: nothing has changed on any worker. After a
        timeout, or when another node is lost, the step goes on: the next wait or forward asks again.
        """
        if self._pending is not None or self._undelivered:
            try:
                self._finish(self._ask(self._session.wait))
            except DmuonError as error:
                self._go_back(error)
        return self.result

    def _go_back(self, error: DmuonError) -> None:
        """After a lost node, with replication="async": model and last_step become those of the step that the job went
        back to. The gradients of the step that was called for belong to a model that is gone. Raises other errors."""
        if error.status != _abi.DMUON_ROLLED_BACK:
            raise error
        former, self._pending = self.last_step, None
        self.last_step, _ = self._persist("the way back", self._session.begin)
        if self._backward:
            self._backward.take()
        self._expecting = 0
        self._targets = None
        self.result = None
        self._deliver(self._held)
        if self._rank == 0:
            warnings.warn(f"job {self.job} lost a node: updates of steps {self.last_step + 1} to {former} are undone, and "
                          f"step {former + 1} is left out; training goes on after step {self.last_step}", stacklevel=3)

    @property
    def exposed_seconds(self) -> float:
        """Exposed communication of the last step(): the seconds that the trainer has stood still for its
        parameters, in step() with sync=True, else in forwards and wait(). Copies do not count."""
        return self._session.waited_seconds

    @torch.no_grad()
    def _before_forward(self, module: nn.Module) -> None:
        """Nobody sees a parameter that is old."""
        if not self._undelivered:
            return
        arriving = sorted(self._undelivered & self._forward_groups.needed(module))
        if not arriving:
            return
        try:
            self._ask(self._session.wait_params, arriving)
            result = self._ask(self._session.poll)
        except DmuonError as error:
            return self._go_back(error)
        if result:
            self._finish(result)
        else:
            self._deliver(arriving)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the session says of the pending step, which an error may end."""
        step = self._pending
        if step is None:
            raise RuntimeError(f"step {self.last_step + 1} ended when the model had a part of it: call step() again")
        try:
            return call(*arguments, step)
        except (DmuonError, Reattached, Stale) as error:
            if not isinstance(error, DmuonError) or error.status not in _GOES_ON:
                self._pending = None
                if len(self._undelivered) == len(self._held):
                    self._set_undelivered(())  # nothing has changed; forwards may go on with what they have
            if isinstance(error, DmuonError):
                raise
            raise RuntimeError(f"step {step} was interrupted by a new plan; call step() again") from error

    def _set_undelivered(self, tensors: Collection[int]) -> None:
        self._undelivered = set(tensors)
        if self._forward_groups:
            self._forward_groups.mark(self._undelivered)

    def _finish(self, result: StepResult) -> None:
        if not result.skipped:
            self._deliver(sorted(self._undelivered))
        elif self._rank == 0:
            warnings.warn(f"step {result.step} was skipped: a gradient was not finite", stacklevel=3)
        self._pending = None
        self._set_undelivered(())
        self.result = result
        self.last_step = result.step
        self.steps_done += 1

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not self._building:
            raise RuntimeError(
                "add_param_group: the service plans ownership of all parameters at once, when the "
                "optimizer is built; use rules=[dmuon.Rule(...)] to make groups"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """What the client holds: param_groups, job id and step number. The rest is the service's."""
        self.wait()
        saved = super().state_dict()
        saved["dmuon"] = {"job": self.job, "last_step": self.last_step}
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes hyper-parameters over. The service's step number stands: a saved one that is larger
        is refused, because the optimizer state it belongs to is not there: `load` it first."""
        saved = state_dict.get("dmuon", {}).get("last_step", 0)
        if saved > self.last_step:
            raise ValueError(
                f"the saved step is {saved}, but job {self.job} in the service is at step "
                f"{self.last_step}: its optimizer state has been lost, or belongs to another job; opt.load(name) puts "
                "a checkpoint of the service in place, and comes first"
            )
        ours = [(g["group_name"], g["algorithm"]) for g in self.param_groups]
        theirs = [(g.get("group_name"), g.get("algorithm")) for g in state_dict["param_groups"]]
        if ours != theirs:
            raise ValueError(f"saved groups {theirs} are not this optimizer's {ours}")
        super().load_state_dict(state_dict)

    # -- session -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the session, when its checkpoints are written. The service drops the job's state once every worker has
        closed."""
        if not self._session.closed:
            self.wait()
        if self._backward:
            self._backward.remove()
        self._session.close()

    def __enter__(self) -> "Muon":
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        if kind is None:
            self.close()

    def routes(self) -> dict[str, str]:
        """Optimizer of each tensor that the service holds, by name."""
        return {t.route.name: t.route.route for t in self._tensors}

    def _group(self) -> list[dict[str, Any]]:
        """The param_groups, and with them the service's groups, in order of first use."""
        groups: dict[str, dict[str, Any]] = {}
        for t in self._tensors:
            group = groups.setdefault(t.route.group, {
                "params": [], "group_name": t.route.group, "algorithm": t.route.route,
                **self._hypers(t.route.route), **t.route.overrides})
            if group["algorithm"] != t.route.route:
                raise ValueError(f"group {t.route.group!r} has both muon and adamw tensors")
            group["params"].append(t.route.param)
        return list(groups.values())

    def _hypers(self, algorithm: str) -> dict[str, Any]:
        if algorithm == "muon":
            o = self._options
            hypers = {"lr": o.lr, "weight_decay": o.weight_decay, "momentum": o.momentum}
            return hypers if o.beta2 is None else hypers | {"beta2": o.beta2}
        a = self._options.adamw
        return {"lr": a.lr, "weight_decay": a.weight_decay, "betas": tuple(a.betas)}

    def _attach(self) -> None:
        """Registers everything; afterwards model and service hold the same parameters."""
        o = self._options
        self._session = Session(
            job=self.job, rank=self._rank, world_size=self._world_size, address=o.address,
            max_grad_norm=float(o.max_grad_norm or 0.0),
            missing_gradient=opts.MISSING[o.missing_gradient], timeout=o.timeout,
            connect_timeout=o.connect_timeout, autotune=opts.AUTOTUNE[o.autotune],
            checkpoint_every_steps=o.checkpoint_every_steps or 0,
            checkpoint_every_seconds=float(o.checkpoint_every_seconds or 0.0), checkpoint_keep=o.checkpoint_keep,
            replication=opts.REPLICATION[o.replication])
        try:
            self._register_all()
            self._fill_params()
            self.last_step, self.resumed = self._session.begin()
        except BaseException:
            self._session.close()  # frees the rank; a job that has state keeps it
            raise
        if self.resumed:
            with torch.no_grad():
                self._deliver(self._held)
            if o.verbose and self._rank == 0:
                print(f"dmuon: job {self.job} goes on after step {self.last_step}", flush=True)

    def _register_all(self) -> None:
        o = self._options
        index = {}
        for group in self.param_groups:
            index[group["group_name"]] = self._session.add_group(group["group_name"], **o.group(group["algorithm"]))
        for t in self._tensors:  # the session numbers them in this order
            name, h = t.route.name, t.holding
            self._session.add_tensor(
                name, shape=h.shape, dtype=dtype_code(name, t.route.param.dtype),
                group=index[t.route.group], offset=h.offset, length=h.length, reduced=h.reduced,
                matrices=t.route.matrices)
        self.plan: PlanInfo = self._session.register()
        self._fetch_buffers()

    def _fetch_buffers(self) -> None:
        for i, t in enumerate(self._tensors):
            t.grad_buffer = self._session.grad_buffer(i, t.local_shape, t.dtype)
            t.param_buffer = self._session.param_buffer(i, t.local_shape, t.dtype)

    @torch.no_grad()
    def _fill_params(self) -> None:
        for t in self._tensors:
            t.param_buffer.copy_(sharding.local_part(t.route.param))

    def _hypers_now(self) -> list[opts.Hyper]:
        hypers = [opts.hyper_of(group) for group in self.param_groups]
        if hypers != self._checked:  # most steps repeat those of the last
            for group, hyper in zip(self.param_groups, hypers, strict=True):
                opts.check_hyper(group["group_name"], hyper)
            self._checked = hypers
        return hypers

    # -- a step ------------------------------------------------------------------------------------

    def _run(self, step: int, hypers: list[opts.Hyper], rows: list[RowFactors]) -> StepResult:
        def attempt() -> StepResult:
            self._submit(step)
            self._session.start(step, hypers, rows)
            self._targets = self._local_params(self._held)  # while the service works
            return self._session.wait(step)
        return self._persist(f"step {step}", attempt)

    def _persist(self, what: str, attempt: Callable[[], _Answer]) -> _Answer:
        """Through new arenas and new plans."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return attempt()
            except Reattached:
                self._fetch_buffers()
            except Stale:
                self._register_again()
        raise RuntimeError(f"{what} was interrupted {_MAX_ATTEMPTS} times by a new arena or plan")

    def _register_again(self) -> None:
        self.plan = self._session.register()
        self._fetch_buffers()
        if self._session.state_lost:
            self._fill_params()  # a new job begins with something
        self._session.begin()

    def _submit(self, step: int) -> None:
        # Checked first: an error must come before the first mark, or a later step() would find it.
        grads = self._local_grads()
        # What backward handed over may have been changed since, by clipping, say, or by a pass more than was
        # announced. Tensors do not tell: their versions do not count what collectives and DTensors do in place.
        early = {i for i in self._backward.take() if self._is_submitted(i, grads[i])} if self._backward else ()
        ready = [i for i in self._held if grads[i] is not None and i not in early]
        _copy([self._tensors[i].grad_buffer for i in ready], [grads[i] for i in ready])
        self._session.submit(ready, step)
        if len(ready) + len(early) < len(self._held):
            self._session.submit_missing([i for i in self._held if grads[i] is None], step)

    def _is_submitted(self, i: int, piece: torch.Tensor | None) -> bool:
        """Whether the arena holds the bits of `piece`."""
        bits = {4: torch.int32, 2: torch.int16}[self._tensors[i].dtype.itemsize]
        return piece is not None and torch.equal(piece.view(bits), self._tensors[i].grad_buffer.view(bits))

    def _submit_early(self, i: int) -> bool:
        """In backward. A gradient that is not what was registered is left to step(), which says so."""
        if self._session.closed:
            return False
        if self._pending is not None:
            self.wait()
        grad = self._tensors[i].param.grad
        piece = sharding.local_part(grad)
        if tensors.description(grad, piece) != self._registered[i]:
            return False
        step = self.last_step + 1
        if self._expecting != step:
            self._session.expect_gradients(step)
            self._expecting = step
        self._tensors[i].grad_buffer.copy_(piece)
        self._session.submit([i], step)
        return True

    def _local_grads(self) -> list[torch.Tensor | None]:
        """This worker's piece of each gradient. TypeError naming the tensor whose gradient is not what was
        registered."""
        grads = [t.param.grad for t in self._tensors]
        pieces = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]
        # One comparison for all; which one differs is looked for when one does.
        if [tensors.description(*pair) for pair in zip(grads, pieces)] != self._registered:
            for t, registered, grad, piece in zip(self._tensors, self._registered, grads, pieces, strict=True):
                if tensors.description(grad, piece) not in (None, registered):
                    raise TypeError(tensors.difference(t, grad, piece))
        return pieces

    def _deliver(self, which: Sequence[int]) -> None:
        # Complete when it returns, on a GPU too: FSDP's streams do not wait for this one after the root.
        targets, self._targets = self._targets or self._local_params(which), None
        _copy(targets, [self._tensors[i].param_buffer for i in which])
        self._set_undelivered(self._undelivered.difference(which))

    def _local_params(self, which: Sequence[int]) -> list[torch.Tensor]:
        return [sharding.local_part(self._tensors[i].param) for i in which]


def _copy(to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    """All at once: half the time of a call for each."""
    if to:
        torch._foreach_copy_(to, source)
