"""The workers of a job as a process group of torch. Its calls go on without those that are lost."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from spotmpi.errors import Left, PeersLost, UsageError
from spotmpi.settings import Settings
from spotmpi.torch import objects
from spotmpi.torch.collectives import Calls, Collectives
from spotmpi.torch.loaders import follow_loaders
from spotmpi.torch.newcomers import Entrance
from spotmpi.torch.part import Part, Split
from spotmpi.torch.pending import Arrival, Arrivals, Call, Later, operation_of
from spotmpi.torch.tensors import SUM_OF_LIVING, SUMS_OF_FLOATS, bytes_of
from spotmpi.torch.torch_rounds import Rounds
from spotmpi.torch_hooks import uneven_data
from spotmpi.torch_hooks.calls import note_what_is_made, replace_calls, tell_of_groups
from spotmpi.torch_hooks.compiler import leave_uncompiled_all
from spotmpi.torch_hooks.libraries import NOBODY, asked_in, asker, is_alike
from spotmpi.torch_hooks.profiles import GROUP_CALLS, show_in_profiles

__all__ = ["BACKEND", "WorkerGroup", "init_process_group", "register", "the_group", "workers"]

BACKEND = "spotmpi"
"""The name of the backend."""

Tensors = Sequence[torch.Tensor]


def init_process_group() -> None:
    """Make the workers of this job torch's default process group. Collective.

    A script calls it in place of `torch.distributed.init_process_group`. Ranks are the workers'
    numbers at the start, and stay what they are when workers are lost. The group ends with
    `torch.distributed.destroy_process_group`, or with the script.
    """
    register()
    if dist.is_initialized():
        raise UsageError("torch has a default process group already: call destroy_process_group()")
    given = Settings.from_environ()
    # A newcomer's place is known once the group is there.
    place = {"rank": given.rank or 0, "world_size": given.world_size or 1}
    # Nobody asks this store for anything of another worker.
    dist.init_process_group(BACKEND, store=dist.HashStore(), **place)
    if given.newcomer is not None:
        os.environ.update(RANK=f"{dist.get_rank()}", WORLD_SIZE=f"{dist.get_world_size()}")


def register() -> None:
    """Tell torch of the backend. Local."""
    os.environ.pop("TORCH_DIST_INIT_BARRIER", None)  # it waits at a store that no other worker has
    if BACKEND.upper() not in dist.Backend.__dict__:
        dist.Backend.register_backend(BACKEND, _made, extended_api=True, devices=["cpu", "cuda"])
        replace_calls()
        tell_of_groups(_note)
        note_what_is_made()
        follow_loaders(_entrance)
        uneven_data.follow_joins()
        show_in_profiles(WorkerGroup, GROUP_CALLS)
        show_in_profiles(Calls, ["reduce"], label="sum")
        show_in_profiles(Arrivals, ["look"], label="recv")
        leave_uncompiled_all([WorkerGroup, Call, Arrival])


def workers() -> tuple[int, ...]:
    """Return the ranks of the workers that live, as of the last call of all. Local."""
    return _the_one().collectives.alive


def the_group() -> WorkerGroup | None:
    """Return the workers of this job as torch's default process group; None: that is another one,
    or none. Local."""
    group = dist.group.WORLD if dist.is_initialized() else None
    return group if isinstance(group, WorkerGroup) else None


def _the_one() -> WorkerGroup:
    group = the_group()
    if group is None:
        raise UsageError("call spotmpi.torch.init_process_group() first")
    return group


def _entrance() -> Entrance | None:
    """Return who goes through loaders together."""
    group = the_group()
    return group and group.entrance


def _note(ranks: Sequence[int]) -> None:
    """Note that all workers make a group of these."""
    if (group := the_group()) is not None:
        group.note(ranks)


def _made(how: Any, _options: Any = None) -> WorkerGroup | None:
    """Make a process group, as torch asks its backends to."""
    world = how.group_size
    ranks = list(how.global_ranks_in_group) or list(range(world))
    if not dist.is_initialized():
        calls = Collectives(Rounds(end_process=_end_process).__enter__(), world)
        return WorkerGroup(Entrance(calls), calls, ends=True)
    return _the_one().part(ranks)


def _end_process() -> None:
    """End at once. The others go on as without any worker that is lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _call(work: Callable[[], None]) -> None:
    work()


class WorkerGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch has no types for it
    """The workers of a job, or some of them. Each call is collective among these, and blocks until
    it is complete."""

    supports_splitting: ClassVar[bool] = False
    """False: torch has nothing to connect beforehand, as in `new_group` with a ``device_id``."""

    def __init__(self, entrance: Entrance, calls: Calls, ends: bool = False) -> None:
        """``calls``: those of its workers. ``ends``: this is the first group, and ends with the
        script."""
        super().__init__(calls.rank, calls.size)
        self._ends = ends
        if ends:
            atexit.register(self._end)
            self._follows = register_optimizer_step_post_hook(lambda *_: entrance.move())
        self.entrance = entrance
        """Where newcomers come in."""
        self._process = os.getpid()
        self._collectives = calls
        self._splits: list[Split] = []
        """The groups of some workers that the script has made, those together that have no worker
        in common."""
        self._later: list[Later] = []
        """Sums that wait for the end of a backward pass."""
        self._divides_by_all: bool | None = None
        """Within `join`: True if gradients are divided by the number of workers at the start, False
        if by the number of those that have data. Elsewhere None."""
        self._says_data: Call | None = None
        """The last call within `join` by which workers have said who has data. DDP keeps it in C++
        alone, and its methods in Python must not be gone when it is waited for."""
        self._at_end: Callable[[], None] | None = None
        """Makes the sums of `sums_together`; None: outside of it."""
        self._name = self._about = ""
        self.called = BACKEND
        """The backend that the script has asked for, and is told (`spotmpi.torch_autoload`)."""
        self._arrivals = Arrivals(lambda: self.collectives)

    @property
    def collectives(self) -> Calls:
        """The calls of its workers. All sums that wait are made first."""
        self._catch_up()
        return self._collectives

    @property
    def is_first(self) -> bool:
        """True if this is the first of its workers that live. A newcomer that rehearses is not."""
        calls = self._collectives
        return not self.entrance.calls.rehearses and calls.rank == calls.alive[0]

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of its workers among all."""
        return self._collectives.ranks

    # What torch asks of a group.

    def size(self) -> int:
        """Return the number of workers at the start."""
        return self._collectives.size

    def getBackendName(self) -> str:  # noqa: N802 - as torch calls it
        """Return the backend's name."""
        return BACKEND

    def _get_backend(self, _device: torch.device) -> WorkerGroup:
        """Return what makes the calls for tensors of this device. Torch asks it what it can do."""
        return self

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name that torch gave it."""
        return self._name

    def _set_group_desc(self, about: str) -> None:
        self._about = about

    @property
    def group_desc(self) -> str:
        """What torch says of it."""
        return self._about

    def shutdown(self) -> None:
        """Leave together with all others, if this is the first group. Collective, unless an
        exception is on its way through the script."""
        self._leave(sys.exc_info()[1])

    def _end(self) -> None:
        """End with the script; the interpreter keeps the exception that has ended it, if any."""
        try:
            self._leave(getattr(sys, "last_value", None))
        except Left:
            pass  # the script is over anyway
        except UsageError:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # it would be 0 otherwise

    def _leave(self, error: BaseException | None) -> None:
        if self._ends and os.getpid() == self._process:  # and not one that the script has forked
            self._ends = False
            atexit.unregister(self._end)
            self._follows.remove()
            if error is None:
                self._catch_up()
            stranded = self.entrance.calls.stranded
            early = self.entrance.early if error is None else None
            if error is None and not stranded and early is None:
                self._say_what_was_missed()
            self.entrance.calls.end(error or early)
            if early is not None:
                raise early
            if stranded:
                _end_process()

    def _say_what_was_missed(self) -> None:
        """The first worker that lives tells the user of samples that nobody has used."""
        missed = self.entrance.passes.missed
        if missed and self.is_first:
            print(
                f"spotmpi: {missed} samples of lost workers were used by nobody; docs/pytorch.md, "
                "Samples, says how the others use them",
                file=sys.stderr,
                flush=True,
            )

    def note(self, ranks: Sequence[int]) -> None:
        """Note that all workers make a group of these. Local."""
        those = tuple(ranks)
        if those != tuple(range(self.size())):
            if not self._splits or any({*those}.intersection(one) for one in self._splits[-1]):
                self._splits.append([])
            self._splits[-1].append(those)

    def part(self, ranks: Sequence[int]) -> WorkerGroup:
        """Return the group of these workers, of which this one is one. Local."""
        whole, those = self.entrance.calls, tuple(ranks)
        if those == tuple(range(whole.size)):
            return WorkerGroup(self.entrance, whole)
        splits = (split for split in reversed(self._splits) if those in split)
        return WorkerGroup(self.entrance, Part(whole, those, next(splits, ())))

    def _keep_shards(self) -> None:
        """Do nothing unless a worker of this group is lost, and torch has asked for what each of
        them alone has. Then this worker ends if all workers of another group live, which has the
        same. Raises PeersLost if there is none."""
        calls = self._collectives
        gone = [rank for rank in range(calls.size) if rank not in calls.alive]
        if not gone or not asked_in(_SHARDED):
            return
        said = ", ".join(str(self.ranks[rank]) for rank in gone)
        why = f"the part of the parameters that only rank {said} had is lost"
        if isinstance(calls, Part) and calls.others_whole:
            print(
                f"spotmpi: {why}: rank {self.ranks[calls.rank]} ends, too; others have all parts",
                file=sys.stderr,
                flush=True,
            )
            _end_process()
        raise PeersLost(f"{why}: start again from a checkpoint of your script's own")

    # Calls. Torch gives lists of tensors, of which most have one.

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> Call:
        """Write the sum, or what the operation says, of all workers' tensors.

        DDP calls it for each bucket while `backward` goes on. All these sums are made together at
        its end, so that a worker has a part in all of a step's gradients or in none. If they are
        those of every step, the first of them travel meanwhile. Who calls it in a hook may wait for
        it in C++, where nobody could make it: it is made at once.
        """
        if isinstance(tensors, torch.Tensor):  # as DDP calls it for workers without data
            tensors = [tensors]
        operation, caller = operation_of(opts), asker()
        in_hook = torch._C._current_autograd_node() is not None  # and in no callback at the end
        callback = self._at_end if caller == uneven_data.__name__ else None
        # For tensors of a device hooks have a thread without any code in Python before them.
        if in_hook and caller.startswith(("torch.autograd", NOBODY)):
            # Each time, as passes may be nested: before DDP's own callback, which waits for sums.
            callback = partial(_call, self._catch_up)
            torch.autograd.Variable._execution_engine.queue_callback(callback)
        says_data = self._divides_by_all is not None and not callback and asked_in(_JOIN)
        if says_data:
            self.entrance.begin_uneven()
        if operation == "SUM" and self._divides_by_all is False and (callback or says_data):
            operation = SUM_OF_LIVING
        if callback is not None:
            self._forget_failed()
            call = Call(tensors, self._catch_up)
            self._later.append(Later(operation, tensors, call, weakref.ref(callback)))
            if in_hook and operation in SUMS_OF_FLOATS:
                number = len(self._later) - 1
                self._collectives.give_early(number, tensors, lambda: self._begins_step)
            return call
        # (Batch normalisation over all workers sums in backward, too.)
        in_pass = in_hook or self._at_end is not None
        gradients = in_pass and not asked_in(["torch.nn.modules"])
        step = gradients and self._begins_step
        self.collectives.reduce(tensors, operation, step)
        if gradients:
            self._sum_up()
        else:
            self._note("sum")
        call = Call(tensors)
        if says_data:
            self._says_data = call
        return call

    def begin_uneven(self, divides_by_all: bool) -> None:
        """Begin a block of `join`, in which workers may have no more data while others have.
        ``divides_by_all``: True if gradients are divided by the number of workers at the start.
        Local."""
        self._divides_by_all = divides_by_all

    def end_uneven(self) -> Call | None:
        """End such a block. Return the last call in it by which workers have said who has data.
        Local."""
        said, self._says_data = self._says_data, None
        self._divides_by_all = None
        self.entrance.end_uneven()
        return said

    def take_from_least(self, tensors: Tensors, number: int) -> None:
        """Write the tensors of the worker with the least number, of those that live; of several it
        is the one of the highest rank. All tensors are that worker's. Collective."""
        calls = self.collectives
        while True:
            found = calls.exchange(number, "the worker with the least number")
            giver = min(found, key=lambda rank: (found[rank], -rank))
            with suppress(PeersLost):  # it is lost: all others are told so, and choose anew
                calls.broadcast(tensors, giver)
                return

    @contextmanager
    def sums_together(self) -> Iterator[None]:
        """Make the sums that DDP asks for within at its end, as those of a backward pass are.
        Collective."""
        self._at_end = callback = partial(_call, self._catch_up)
        try:
            yield
        finally:
            self._at_end = None
        callback()

    def _catch_up(self) -> None:
        """Make the sums that wait, those of one operation together."""
        self._forget_failed()
        later, self._later = self._later, []
        tensors = [one for some in later for one in some.tensors]
        summed = self._collectives.end_early(tensors, [one.operation for one in later])
        if not later:
            return
        if not summed:
            step = self._begins_step
            for operation, calls in groupby(later, key=lambda one: one.operation):
                some = [one for call in calls for one in call.tensors]
                self._collectives.reduce(some, operation, step)
                step = False  # one for all of a backward pass
        for one in later:
            one.call.end()
        self._collectives.note_sum(tensors)
        self._sum_up()

    def _forget_failed(self) -> None:
        """Drop the sums of a pass that has failed: with it the callback is gone. Collective if
        others were given a part of them."""
        later = [one for one in self._later if one.callback() is not None]
        if len(later) < len(self._later):
            self._later = later
            self._collectives.end_early((), ())

    @property
    def _begins_step(self) -> bool:
        """True if the next sum of gradients stands for a step."""
        return self._of_a_step and self.entrance.begins_step

    def _note(self, call: str) -> None:
        """Note a call, unless it is one of some workers: others make none."""
        if self._has_all:
            self.entrance.calls.note(call)

    @property
    def _has_all(self) -> bool:
        """True if all workers are in this group."""
        return self._collectives is self.entrance.calls

    @property
    def _of_a_step(self) -> bool:
        """True if all workers sum gradients when this group does. FSDP's do, each in a group."""
        return self._has_all or asked_in(_SHARDED)

    def _sum_up(self) -> None:
        """Note that gradients were summed."""
        if self._of_a_step:
            self.entrance.sum_up()
        else:
            self.entrance.sum_up_some()

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Call:
        """Do the same with several tensors."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Call:
        """Write the sum on one worker."""
        copies = tensors
        if opts.rootRank != self.rank():
            copies = [tensor.detach().clone() for tensor in tensors]
        self.collectives.reduce(copies, operation_of(opts))
        self._note("sum")
        return Call(tensors)

    def broadcast(self, tensors: Tensors, opts: Any) -> Call:
        """Write one worker's tensors on all. Raises PeersLost if it is lost, unless all have the
        same."""
        self.collectives.broadcast(tensors, opts.rootRank, is_alike())
        if not asked_in(_DDP):  # more of them in its first steps than later
            self._note("broadcast")
        return Call(tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Call:
        """Write each worker's tensor into a list on all."""
        for there, mine in zip(outputs, inputs, strict=True):
            for out, found in zip(there, self.collectives.gather(mine), strict=True):
                out.detach().copy_(found)
        self._keep_shards()
        return Call(outputs)

    def all_gather_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> Call:
        """Write all workers' tensors, one after the other."""
        whole = output.detach().contiguous()  # its own memory, or a copy
        rows = whole.view(self.size(), mine.numel())
        for row, found in zip(rows, self.collectives.gather(mine), strict=True):
            row.copy_(found.view(-1))
        if not output.is_contiguous():
            output.detach().copy_(whole)
        self._keep_shards()
        return Call(output)

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Call:
        """Do the same with several tensors."""
        for output, mine in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, mine)
        return Call(outputs)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Call:
        """Write each worker's tensors into a list of its own."""
        for place, mine in enumerate(inputs):
            self.allgather([[there[place] for there in outputs]], [mine])
        return Call(outputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Call:
        """Write each worker's tensor into a list on one of them."""
        (mine,) = inputs
        found = self.collectives.gather(mine)
        if opts.rootRank == self.rank():
            for out, one in zip(outputs[0], found, strict=True):
                out.detach().copy_(one)
        return Call(outputs)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Call:
        """Write on each worker its tensor of one worker's list."""
        (out,) = outputs
        mine = torch.stack(list(inputs[0])) if inputs else out.new_empty((self.size(), *out.shape))
        self.collectives.broadcast([mine], opts.rootRank)
        out.detach().copy_(mine[self.rank()])
        return Call(outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Call:
        """Write on each worker its tensor of the sum of all workers' lists."""
        (out,), (mine,) = outputs, inputs
        self.collectives.reduce_part(torch.stack(list(mine)), out, operation_of(opts))
        return Call(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, mine: torch.Tensor, opts: Any) -> Call:
        """Write on each worker its part of the sum of all workers' tensors."""
        gradients = asked_in(_SHARDED)
        step = gradients and self.entrance.begins_step
        self.collectives.reduce_part(mine, output, operation_of(opts), step)
        if gradients:
            self._sum_up()
        self._keep_shards()
        return Call(output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Call:
        """Do the same with several tensors."""
        for output, mine in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, mine, opts)
        return Call(outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Call:
        """Write on each worker what each has for it."""
        found = self.collectives.gather_lists(inputs)
        for out, theirs in zip(outputs, found, strict=True):
            out.detach().copy_(theirs[self.rank()].view(out.shape))
        return Call(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        mine: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Call:
        """Do the same with parts of one tensor, along its first dimension."""
        ours = output.detach().split(list(output_splits) or len(output) // self.size())
        theirs = mine.detach().split(list(input_splits) or len(mine) // self.size())
        return self.alltoall(ours, theirs)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Call:
        """Return when all workers have come here."""
        self.collectives.meet()
        return Call([])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Return when all workers have come here. There is no time limit: a worker that does
        nothing is revoked (``--stall-timeout``)."""
        self.collectives.meet()

    own_calls: ClassVar[Mapping[str, Callable[..., Any]]] = {
        **objects.CALLS,
        "monitored_barrier": monitored_barrier,
    }
    """Calls in place of torch's: those for objects, and a barrier that torch allows gloo only."""

    def send(self, tensors: Tensors, rank: int, tag: int) -> Call:
        """Send a copy of a tensor to one worker, and do not wait. Raises PeersLost if that is known
        to be lost."""
        (mine,) = tensors
        self.collectives.post(rank, self.key(tag), bytes_of(mine))
        return Call(tensors)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> Arrival:
        """Write what one worker sends, when it is waited for. The wait raises PeersLost if that
        worker is lost; it goes on when another one is."""
        (out,) = tensors
        return self._arrivals.expect(out, rank, self.key(tag))

    def recv_anysource(self, tensors: Tensors, tag: int) -> Arrival:
        """Write what the first of the others sends, when it is waited for. The wait raises
        PeersLost if any of them is lost meanwhile."""
        (out,) = tensors
        return self._arrivals.expect(out, None, self.key(tag))

    def key(self, what: object) -> bytes:
        """Return the key of messages of this kind, or with this tag, in this group."""
        return self._collectives.key(f"{self._name} {what}")


_DDP = ("torch.nn.parallel",)
"""Makes calls of its own beside the script's."""
_SHARDED = ("torch.distributed.fsdp", "torch.distributed.tensor")
"""Modules of torch that leave each worker with a part of the parameters which no other one has."""

_JOIN = ("torch.distributed.algorithms.join",)
"""Asks who has data."""
