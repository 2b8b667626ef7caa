"""`DistributedDataParallel.join()`: a worker whose data has ended takes part in the others' steps
until theirs has. Imports no torch: `import torch` calls what is here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from spotmpi.errors import UsageError

__all__ = ["follow_joins"]


def follow_joins() -> None:
    """From now on modules in groups of spotmpi may be trained on uneven data, whichever workers are
    lost. Local."""
    join = sys.modules["torch.distributed.algorithms.join"].Join
    join.__enter__ = _beginning(join.__enter__)
    join.__exit__ = _ending(join.__exit__)


def _beginning(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return what begins a block of torch's `Join`."""

    @functools.wraps(usual)
    def enter(join: Any) -> Any:
        modules = [_UnevenModule(one) for one in join._joinables if join._enable and _is_ours(one)]
        if len(join._joinables) > 1 and not all(one.divides_by_all for one in modules):
            raise UsageError(
                "divide_by_initial_world_size=False goes with one module alone: torch divides the "
                "gradients of a second one by the number of workers at the start"
            )
        for one in modules:
            one.begin()
        join._uneven_modules = modules
        return usual(join)

    return enter


def _ending(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ends a block of torch's `Join`."""

    @functools.wraps(usual)
    def leave(join: Any, *raised: Any) -> Any:
        try:
            return usual(join, *raised)
        finally:
            for one in join._uneven_modules:
                one.end()

    return leave


def _is_ours(joinable: Any) -> bool:
    """Return True for a module for DDP in a group of spotmpi."""
    kind = sys.modules["torch"].nn.parallel.DistributedDataParallel
    return isinstance(joinable, kind) and hasattr(joinable.process_group, "begin_uneven")


class _UnevenModule:
    """What a module for DDP does in another way within a block of `join`. Collective, unless marked
    local."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._steps = 0
        """The others' steps that this worker has taken part in since its data ended."""

    @property
    def divides_by_all(self) -> bool:
        """True if gradients are divided by the number of workers at the start; False: of those that
        have data."""
        there: bool = self._module._divide_by_initial_world_size
        return there

    @property
    def _has_hook(self) -> bool:
        """True if the script exchanges buffers in a way of its own."""
        return hasattr(self._module, "buffer_hook")

    def begin(self) -> None:
        """Put these methods in the place of the module's. Local."""
        for name in _REPLACED:
            setattr(self._module, name, getattr(self, name))
        self._module.process_group.begin_uneven(self.divides_by_all)

    def end(self) -> None:
        """Leave the module as it would be without the block. Local."""
        for name in _REPLACED:
            delattr(self._module, name)
        # Torch would go on to ask who has data, and with no new answer wait for the last one.
        self._module._join_config = self._module._join_config._replace(enable=False)
        said = self._module.process_group.end_uneven()
        if said is not None:
            self._module.reducer._set_forward_pass_work_handle(said, True)
        self._module.require_forward_param_sync = True

    def _match_all_reduce_for_bwd_pass(self) -> None:
        """Make the sums of the others' backward pass: in one round, as they do."""
        reducer = self._module.reducer
        buckets = reducer._get_zeros_like_grad_buckets()
        with self._module.process_group.sums_together():
            sums = [reducer._run_comm_hook(bucket) for bucket in buckets]
        for one in sums:
            one.wait()

    def _sync_buffers(self) -> None:
        """Take the buffers of a worker that has data, as this one has."""
        if self._has_hook:
            type(self._module)._sync_buffers(self._module)
            return
        self._module._assign_modules_buffers()
        self._take(self._module.modules_buffers)

    def _check_and_sync_module_buffers(self) -> None:
        """Take the buffers of a worker that has data, at the beginning of the others' step."""
        self._steps += 1
        if self._has_hook:
            type(self._module)._check_and_sync_module_buffers(self._module)
        elif self._module._check_sync_bufs_pre_fwd():
            self._take(self._module.modules_buffers)

    def _sync_final_model(self, _is_last: bool) -> None:
        """Take the model of the worker whose data has ended last, of those that live."""
        module, without = self._module, self._module.parameters_to_ignore
        named = [*module.module.named_parameters()]
        if module.broadcast_buffers:  # newer versions of torch have another name, too
            named += module.module.named_buffers()
        self._take([one.detach() for name, one in named if name not in without])

    def _take(self, tensors: Any) -> None:
        """Write the tensors of a living worker that has made the fewest steps without data."""
        torch = sys.modules["torch"]
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(tensors)):
            self._module.process_group.take_from_least(tensors, self._steps)


_REPLACED = (
    "_match_all_reduce_for_bwd_pass",
    "_sync_buffers",
    "_check_and_sync_module_buffers",
    "_sync_final_model",
)
"""Methods of DDP, by the names that torch has from 2.7 to 2.15."""
