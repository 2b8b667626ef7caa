"""`DistributedOptimizer`: trains a torch module on all workers, whichever of them are lost."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, TypeVar

import torch

from spotmpi.arrays.backend import Array, Buffer
from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.errors import UsageError
from spotmpi.policies import Policy
from spotmpi.strategies import Strategy
from spotmpi.torch.after_steps import AfterSteps
from spotmpi.torch.early_gradients import EarlyGradients
from spotmpi.torch.tensors import array_of, check_stream, stream_of, tensor_of
from spotmpi.torch.torch_optimizer import TorchOptimizer, as_trained
from spotmpi.training.optimizing import Optimizing

__all__ = ["DistributedOptimizer"]

Self = TypeVar("Self", bound="DistributedOptimizer")

_FLOATS = (torch.float32, torch.float64)
_HALVES = (torch.bfloat16, torch.float16)
_SOME = 3
"""Most names in a message."""


class DistributedOptimizer(Optimizing[dict[str, Array]]):
    """Trains a torch module on all workers of the job, and goes on if any of them are lost.

    ``optimizer``: a torch optimizer.
    ``module``: names the parameters, and has the buffers, of which all workers take the mean after
        each round. All workers begin with the first worker's parameters and buffers. Parameters
        that the optimizer does not move must be equal on all workers.
    ``schedulers``: of the optimizer's learning rates. `step` steps each of them, so the script does
        not. Checkpoints keep their state, and newcomers get it.
    ``scaler``: a `torch.amp.GradScaler`. Call ``scaler.scale(loss).backward()`` and nothing else of
        it. A step with a gradient that is not finite moves no parameter.
    ``overlap``: sum gradients while `backward` computes others, if the strategy can. Then call
        `backward` once for each step (see `no_sync`), and do not change gradients after it.

    Parameters of half precision are trained in float32 and rounded after each step. The other
    arguments are those of `spotmpi.Trainer`. A context manager, as a trainer is. In the
    block the gradients of the parameters lie in memory of spotmpi, and are zero after each step.
    """

    _call = "opt"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        module: torch.nn.Module | None = None,
        schedulers: Sequence[Any] = (),
        scaler: torch.amp.GradScaler | None = None,
        overlap: bool = False,
        strategy: Strategy | None = None,
        strategies: Sequence[Strategy] = (),
        policy: Policy | None = None,
        seed: int = 0,
        scale_lr: str = "linear",
        lr_reference: int | None = None,
        lr_warmup: int = 0,
        bucket_mb: float = BUCKET_MB,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"optimizer must be one of torch.optim, not {optimizer!r}")
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        self._moved = _named(optimizer, module)
        """The parameters that the optimizer moves, by name."""
        self._buffers = {} if module is None else _buffers(module)
        """The buffers that workers take the mean of, by name."""
        self._still = {} if module is None else _still(module, self._moved, self._buffers)
        """What is saved with the module beside these, by name: nobody moves it."""
        self._device = _device(self._moved)
        """Where the module is."""
        if overlap and self._device.type != "cpu":
            raise UsageError(
                f"overlap=True needs a module in memory of the host, and it is on {self._device}: "
                "leave overlap out"
            )
        self._mover = TorchOptimizer(optimizer, self._moved, self._buffers, scaler)
        self._after = AfterSteps(optimizer, schedulers, scaler, self._mover)
        self._early = EarlyGradients(self._moved, self._give_early)
        self._overlap = overlap
        self._copied = {
            **self._buffers,
            **{name: one.detach() for name, one in self._moved.items() if one.dtype in _HALVES},
        }
        """These buffers and the parameters of half precision: they have other memory than rounds,
        and get a copy after each step."""
        self._there: dict[str, torch.Tensor] = {}
        """The memory of rounds for these, by name."""
        self._grads: dict[str, Array] = {}
        """Memory of the gradients, by name."""
        self._views: dict[str, torch.Tensor] = {}
        """The same memory, as torch sees it."""
        self._block = ExitStack()
        """What is undone at the end of the block."""
        with stream_of(self._device):
            super().__init__(
                {name: array_of(one) for name, one in self._trained().items()},
                optimizer=self._mover,
                strategy=strategy,
                strategies=strategies,
                policy=policy,
                seed=seed,
                scale_lr=scale_lr,
                lr_reference=lr_reference,
                lr_warmup=lr_warmup,
                bucket_mb=bucket_mb,
            )
            model = self._training.model
            self._mover.begin(model.layout, model.memory)
            self._training.registry.keep("torch", self._after)
            self._look_at(model.flats)

    def step(self, loss: float | torch.Tensor | None = None) -> None:
        """Average the gradients over all workers and move the parameters: one step. Collective,
        blocking.

        Call it once for each batch, after the last `backward` of it. The gradients are those of the
        mean over this worker's batch. A parameter without a gradient counts as one whose gradient
        is zero. Afterwards the gradients are zero. ``loss``: the mean over the batch.
        """
        self._connected("step()")
        self._check_batch("step")
        check_stream(self._device)
        number = self._number(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        self._after.check()
        self._bring()
        self._mover.note(self._training.model.memory)
        training = self._training
        training.gradient.completed(self._grads, training.sync.give)
        participant = self._connected("step()")
        self._participant = self._run(participant.step(self._grads, number))
        self._after.end(self.steps)
        self._copy()
        self._begin_step()

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a block in which `backward` only adds up gradients. Local.

        Compute all parts of a batch but the last one in it, if there is ``overlap``. Otherwise it
        changes nothing.
        """
        return self._early.held()

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Return a block in which the module has the parameters and buffers that all workers agree
        on. Local.

        Evaluate and save the module in it. They are the parameters that are trained, unless each
        worker trains a model of its own (as with `LocalSGD` between rounds, `SMA` or `DiLoCo`).
        """
        model = self._training.model
        self._look_at(model.agreed)
        try:
            yield
        finally:
            self._look_at(model.flats)

    def __enter__(self: Self) -> Self:
        with ExitStack() as block:
            block.enter_context(stream_of(self._device))
            super().__enter__()
            block.enter_context(self._mover.guarded())
            if self._overlap:
                block.enter_context(self._early.watching())
            self._block = block.pop_all()
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self) -> None:
        """Give the module what all begin with, and the gradients their memory. Collective."""
        self._check_still()
        self._copy()
        self._grads = self._training.gradient.arrays(self._training.sync.memory.shared)
        self._views = {name: tensor_of(grad) for name, grad in self._grads.items()}
        self._begin_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._block.close()
            for param in self._moved.values():
                param.grad = None

    def _look_at(self, flats: Sequence[Buffer]) -> None:
        """Let the parameters have these buffers as their memory, and copy the rest from them."""
        arrays = self._training.model.layout.named(flats)
        for name, param in self._moved.items():
            if name not in self._copied:
                param.data = tensor_of(arrays[name])
        self._there = {name: tensor_of(arrays[name]) for name in self._copied}
        self._copy()

    def _begin_step(self) -> None:
        """Set the gradients to zero, in the memory that rounds read."""
        for name, param in self._moved.items():
            self._views[name].zero_()
            param.grad = None if name in self._copied else self._views[name]

    def _bring(self) -> None:
        """Bring gradients that lie elsewhere, and how far the buffers have come."""
        early = self._early
        for name in [name for name in self._moved if name not in early]:
            self._bring_one(name)
        early.end()
        for name, buffer in self._buffers.items():
            before, now = self._there[name], self._numbers(buffer)
            moved = torch.where(before == now, 0.0, before - now)  # both are infinite in a mask
            self._views[name].copy_(moved)

    def _bring_one(self, name: str) -> None:
        """Bring the gradient of this parameter."""
        view, grad = self._views[name], self._moved[name].grad
        if grad is None:
            view.zero_()
        elif grad is not view:
            view.copy_(grad.to_dense() if grad.is_sparse else grad)

    def _give_early(self, name: str) -> None:
        """Give the gradient of this parameter to the round while `backward` goes on."""
        participant = self._connected("ready()")
        self._check_batch("ready")
        self._bring_one(name)
        self._participant = self._run(participant.ready(name, self._grads[name]))

    def _copy(self) -> None:
        """Copy from the memory of rounds to what has other memory."""
        for name, one in self._copied.items():
            found = self._there[name]
            one.copy_(found if one.is_floating_point() else found.round())

    def _trained(self) -> dict[str, torch.Tensor]:
        """Return what rounds carry, by name: the buffers as numbers, and the parameters. Sums begin
        with the last ones, and buffers are brought with the step."""
        numbers = {name: self._numbers(one) for name, one in self._buffers.items()}
        return {**numbers, **{name: one.to(as_trained(one)) for name, one in self._moved.items()}}

    def _numbers(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return what a buffer holds as numbers that can be averaged."""
        kind = buffer.dtype if buffer.dtype in _FLOATS else torch.float64
        return buffer.detach().to(self._device, kind)

    def _check_still(self) -> None:
        """Raise UsageError if workers differ in what nobody moves. Collective."""
        own = 0
        for name, one in sorted(self._still.items()):
            seen = one.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
            own = zlib.crc32(seen.numpy(), zlib.crc32(name.encode(), own))
        if self._still and self.mean(float(own)) != own:
            some = ", ".join(list(self._still)[:_SOME])
            raise UsageError(
                f"worker {self.worker}: parameters or buffers that nobody moves differ between "
                f"workers ({some}, ..): load the same file on all of them, or call "
                "torch.manual_seed() before the module is made"
            )


def _named(
    optimizer: torch.optim.Optimizer, module: torch.nn.Module | None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of the optimizer by name, each once. Raises UsageError."""
    names = {} if module is None else {id(one): name for name, one in module.named_parameters()}
    found = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, param in enumerate(group["params"]):
            if module is not None and id(param) not in names:
                raise UsageError(
                    f"parameter {place} of group {number} of the optimizer is not one of the "
                    "module's: give the module that the optimizer was made for, or none"
                )
            if param.requires_grad:
                found[names.get(id(param), f"group{number}.{place}")] = param
    if not found:
        raise UsageError("the optimizer has no parameter that requires a gradient")
    return found


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of numbers that are saved with the module, by names that no parameter
    has."""
    saved = module.state_dict(keep_vars=True)
    return {
        f"buffer {name}": one
        for name, one in module.named_buffers()
        if name in saved and one.numel() and one.dtype is not torch.bool and not one.is_complex()
    }


def _still(module: torch.nn.Module, *moved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what is saved with the module and is not among what is ``moved``."""
    known = {id(one) for some in moved for one in some.values()}
    saved = module.state_dict(keep_vars=True).items()
    return {
        name: one for name, one in saved if isinstance(one, torch.Tensor) and id(one) not in known
    }


def _device(params: Mapping[str, torch.nn.Parameter]) -> torch.device:
    """Return where these parameters are. Raises UsageError unless spotmpi can train them there."""
    first, *_ = params.values()
    for name, param in params.items():
        if param.dtype not in (*_FLOATS, *_HALVES):
            raise UsageError(
                f"parameter {name} is {param.dtype}: spotmpi trains float64, float32, bfloat16 and "
                "float16"
            )
        if param.device != first.device:
            raise UsageError(
                f"parameter {name} is on {param.device}, others are on {first.device}: spotmpi "
                "trains a module that is on one device"
            )
    return first.device
