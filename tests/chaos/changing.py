"""Changes its strategy in the very round in which a worker joins or leaves, or all stop.

usage: changing.py BEFORE AFTER WORKERS [DIES]

The first worker that has a newcomer, or an order of the launcher, writes the number of a round soon
after that to the file ``due``. Until then no worker acts on it. In the first round of steps from
this number on, all want the strategy AFTER. So the control word that says what comes carries the
leader's wish as well. Worker DIES kills itself by SIGKILL in this round, before its own word goes
to the others. Training ends with the first pass in which all follow AFTER from its beginning, and
are WORKERS at its end.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import model

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.protocol import control_word
from spotmpi.strategies import named
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.launcher_orders import LauncherOrders

DUE = Path("due")
before, after = map(named, sys.argv[1:3])
workers, dies = int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None
obey, speak = LauncherOrders.obey, TrainingExchange.speak
now = -1
"""Number of the last round, if it is one of steps."""


def is_due() -> bool:
    return DUE.exists() and now >= int(DUE.read_text())


def obey_when_it_is_due(orders, *known):
    obey(orders, *known)
    told = orders.leave or orders.stop or guest(orders._context.fabric) is not None
    if told and now >= 0 and not DUE.exists():
        mine = DUE.with_suffix(f".{trainer.worker}")
        mine.write_text(str(now + 2))
        with suppress(FileExistsError):  # another worker was first
            os.link(mine, DUE)
        mine.unlink()
    if not is_due():
        orders.leave = orders.stop = False
    else:
        trainer.strategy = after


def speak_or_die(exchange, membership):
    global now
    in_step = exchange.round.kind == control_word.STEP
    now = exchange.driver.ledger.committed if in_step else -1
    speak(exchange, membership)
    if exchange.me == dies and is_due():
        os.kill(os.getpid(), signal.SIGKILL)


LauncherOrders.obey = obey_when_it_is_due
TrainingExchange.speak = speak_or_die

passes, enough = 0, 0.0
with spotmpi.Trainer(
    model.params(), optimizer=Momentum(lr=0.02), strategy=before, strategies=[after], seed=7
) as trainer:
    from spotmpi.fabric.mpi.fabric import MpiFabric  # not earlier, as it starts MPI

    guest = MpiFabric.guest
    MpiFabric.guest = lambda fabric: guest(fabric) if is_due() else None
    while not enough:
        changed = str(trainer.strategy) == str(after)
        for batch in trainer.batches(model.SAMPLES, batch_size=4):
            loss, grads = model.gradient(trainer.params, batch)
            trainer.step(grads, loss=loss)
        over = changed and len(trainer.workers) == workers
        passes, enough = passes + 1, trainer.mean(float(over))
print("FINAL", trainer.worker, model.fingerprint(trainer.model), passes)
