"""A training script that dies when it is told to: run by the tests beside it, under real MPI.

``CHAOS`` holds deaths as ``WORKER:MOMENT:COUNT``, comma-separated: that worker kills itself with
SIGKILL right before it performs its COUNT-th request of the kind MOMENT (a class of
spotmpi.fabric or spotmpi.protocol.recovery; counted from 1, recoveries only for Send, Poll, Rebuild
and Share), or before its COUNT-th call of ``save`` (writing a checkpoint), or in the middle of
that, before the COUNT-th ``piece`` of all that it writes; or in the middle of what it does once
(``work``), or right after that (``worked``); or before it adds the COUNT-th ``array`` to what it
shares with others; or in the middle of its COUNT-th evaluation
(``evaluate``; ``--evaluate W@STEP`` has that worker evaluate for two seconds); or right before the
control word of the COUNT-th round in which it ``wishes`` for another strategy goes to the others;
or right before its COUNT-th ``change`` to another one, or right after that (``changed``). With
``WORKER:MOMENT:COUNT:VICTIM`` it kills another worker then.

``--once loop`` does something once in every third step and after the loop, ``--once end`` only
after the loop: it writes a file to the folder ``kept``, as docs/once.md says.

With ``--late`` whoever is to die by --revoke may die as late as when all others have the result.
With ``--refuse N`` each worker finds the disk full when it writes its first N checkpoints; with
``--terminate STEP`` the launcher gets SIGTERM in that step.

With ``--vague`` MPI never says that a call broke because of a death, only that it broke.
"""

import argparse
import errno
import os
import signal
import time
from collections import Counter
from pathlib import Path

import model
import numpy as np
import others
from arrays import LIBRARIES, Library

import spotmpi
from spotmpi.fabric.mpi import calls
from spotmpi.fabric.mpi import fabric as mpi
from spotmpi.fabric.neighbours import common_sums
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD, named
from spotmpi.testing import slowed
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.fault_injection import FaultInjection
from spotmpi.training.keeping import checkpoint_file
from spotmpi.training.steps.switching import Switching
from tests.fabric.planes import PLANES

parser = argparse.ArgumentParser()
parser.add_argument("--passes", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--means", action="store_true", help="a mean() in every step")
parser.add_argument("--gathers", action="store_true", help="a gather() in every step")
parser.add_argument("--sums", type=int, help="a sum() of so many numbers in every step")
parser.add_argument("--plane", default="Node", choices=["Plain", "Node", "Hosts"])
parser.add_argument("--wide", action="store_true", help="a model that is worth sharing memory")
parser.add_argument("--strategy", default="ssgd", help="or one of others")
parser.add_argument("--refuse", type=int, default=0, help="so many checkpoints of each worker")
parser.add_argument("--terminate", type=int, help="the step in which the launcher gets SIGTERM")
parser.add_argument("--evaluate", action="append", default=[], metavar="W@STEP")
parser.add_argument("--vague", action="store_true", help="MPI tells no class of ULFM")
parser.add_argument("--late", action="store_true", help="rehearsed deaths may come later")
parser.add_argument("--in-place", action="store_true", help="gradients are computed in place")
parser.add_argument("--pieces", action="store_true", help="gradients are given one by one")
parser.add_argument("--arrays", default="numpy", choices=LIBRARIES)
parser.add_argument("--slow", type=int, help="this worker is ten times slower than it is")
parser.add_argument("--most", type=int, help="steps after which the loop is left")
parser.add_argument("--change", nargs="+", default=[], help="after every third step, in turn")
parser.add_argument("--once", choices=["loop", "end"], help="something is done once")
arguments = parser.parse_args()
library = Library(arguments.arrays)

deaths = {
    (int(worker), moment, int(count)): int(victim[0] if victim else worker)
    for worker, moment, count, *victim in (
        death.split(":") for death in os.environ.get("CHAOS", "").split(",") if death
    )
}
seen: Counter[str] = Counter()
perform, save, pieces = mpi.MpiFabric.perform, checkpoint_file.save, checkpoint_file._pieces
replace = common_sums._replace
speak, carry_out = TrainingExchange.speak, Switching.carry_out


def die_at(worker: int, moment: str) -> None:
    seen[moment] += 1
    victim = deaths.get((worker, moment, seen[moment]))
    if victim is not None:
        os.kill(
            os.getpid() if victim == worker else int(pid_of(victim).read_text()), signal.SIGKILL
        )


def pid_of(worker: int) -> Path:
    return Path(f"{os.environ['SPOTMPI_JOB']}-{worker}.pid")


def perform_or_die(fabric, request):
    die_at(fabric.me, type(request).__name__)
    return perform(fabric, request)


def save_or_die(*args, **kwargs):
    die_at(trainer.worker, "save")
    return save(*args, **kwargs)


def replace_or_die(*args):
    die_at(trainer.worker, "array")
    replace(*args)


def speak_or_die(exchange, membership):
    speak(exchange, membership)
    if exchange.switching.wish is not None:
        die_at(exchange.me, "wishes")


def carry_out_or_die(switching, *known):
    before = trainer.strategy
    if switching._agreed is not None:
        die_at(trainer.worker, "change")
    carry_out(switching, *known)
    if trainer.strategy is not before:
        die_at(trainer.worker, "changed")


def launcher() -> int:
    """The process above all workers of this host."""
    pid = os.getpid()
    while "run" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def pieces_or_die(*args):
    if seen["save"] <= arguments.refuse:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for piece in pieces(*args):
        die_at(trainer.worker, "piece")
        yield piece


def gradient(samples):
    loss, grads = model.gradient(library.fetch(trainer.params), samples)
    return loss, library.put(grads)


def fingerprint(params):
    return model.fingerprint(library.fetch(params))


def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        gradient(range(model.SAMPLES))


def evaluate():
    half = 0.1 if trainer.worker == arguments.slow else 1.0  # it is made longer by `slowed`
    compute(half)
    die_at(trainer.worker, "evaluate")
    compute(half)


mpi.MpiFabric.perform = perform_or_die
common_sums._replace = replace_or_die
checkpoint_file.save = save_or_die
checkpoint_file._pieces = pieces_or_die
TrainingExchange.speak = speak_or_die
Switching.carry_out = carry_out_or_die
mpi.PLANE = PLANES[arguments.plane]
if arguments.late:
    # So others may have committed the step, all or some of them: then it is not tried again.
    hold = FaultInjection.hold
    FaultInjection.hold = lambda rehearsal: None
    FaultInjection.reduced = lambda rehearsal, seconds: hold(rehearsal)
if arguments.vague:
    calls._FAILURES = frozenset()  # so that each of its classes looks like any other


def keep(moment):
    """What is done once."""
    path = Path("kept") / moment
    half = path.with_suffix(f".by-{trainer.worker}")
    half.write_text("half of it")
    die_at(trainer.worker, "work")
    half.write_text(f"{trainer.worker} kept {moment}")
    os.replace(half, path)
    print("KEPT", moment, "by", trainer.worker, flush=True)
    die_at(trainer.worker, "worked")
    return {"by": trainer.worker, "step": trainer.steps, "params": library.fetch(trainer.params)}


def do_once(moment):
    """All are told what came of it, whoever has done it."""
    found = trainer.once(lambda: keep(moment))
    assert found["step"] == trainer.steps
    assert found["by"] == trainer.workers[0]
    assert model.fingerprint(found["params"]) == fingerprint(trainer.params)


changes = [named(one) for one in arguments.change]
gradients = 0
with spotmpi.Trainer(
    library.put(model.params(arguments.wide)),
    optimizer=Momentum(lr=0.02),
    strategy=others.STRATEGIES.get(arguments.strategy, SSGD)(),
    strategies=changes,
    seed=7,
    bucket_mb=1e-9 if arguments.pieces else 25.0,
) as trainer:
    if "SPOTMPI_JOB" in os.environ:
        pid_of(trainer.worker).write_text(str(os.getpid()))
    batches = trainer.batches(
        model.SAMPLES, batch_size=arguments.batch_size, passes=arguments.passes
    )
    for batch in slowed(batches, 10 if trainer.worker == arguments.slow else 1):
        if arguments.most is not None and trainer.steps >= arguments.most:
            break
        loss, grads = gradient(batch)
        gradients += 1
        if trainer.leader and trainer.steps == arguments.terminate:
            os.kill(launcher(), signal.SIGTERM)
        if f"{trainer.worker}@{trainer.steps}" in arguments.evaluate:
            evaluate()
        if arguments.in_place:
            for key, array in trainer.gradients.items():
                array[...] = grads[key]
            grads = trainer.gradients
            trainer.mean(loss)  # a round that brings nothing, with the gradient in its place
        if arguments.pieces:  # some of them, or all or none; the rest with the step
            grads = dict(grads)
            for key in list(grads)[::-1][: trainer.steps % (len(grads) + 1)]:
                trainer.ready(key, grads.pop(key))
            trainer.step(grads or None, loss=loss)
        else:
            trainer.step(grads, loss=loss)
        if changes and trainer.steps % 3 == 2:
            trainer.strategy = changes[trainer.steps // 3 % len(changes)]
        if arguments.means:
            assert trainer.mean(3.0) == 3.0
        if arguments.gathers:
            gathered = trainer.gather(bytes(trainer.worker))
            assert gathered == {one: bytes(one) for one in gathered}
            assert trainer.worker in gathered
        if arguments.sums:
            total, of = trainer.sum(np.full(arguments.sums, 2.0**trainer.worker, np.float32))
            assert set(total) == {sum(2.0**one for one in of)}
            assert trainer.worker in of
        if arguments.once == "loop" and trainer.steps % 3 == 0:
            do_once(f"step-{trainer.steps}")
    if arguments.once:
        do_once("end")
trained = library.fetch(trainer.model)
final = trainer.worker, model.fingerprint(trained), gradients, trainer.steps
print("FINAL", *final, *(repr(float(value)) for value in model.values(trained)))
