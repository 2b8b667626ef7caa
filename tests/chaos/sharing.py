"""A script that says where its parameters lie, step by step: ``sharing.py PASSES [WAY]``, run by
test_sharing. PASSES: 0 for as many as there are until there is a file ``enough``. WAY: how it
trains, or its mistake."""

import sys
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.optimizers import LAMB, Adam, Momentum
from spotmpi.strategies import SSGD

SIZE, SAMPLES = 5000, 240
BUCKET_MB = 0.01
"""Several buckets, of which no array fills one."""


class Slower(Momentum):
    """Somebody's own."""

    def update(self, params, grads, slots, rate, scale):
        """Half as far."""
        super().update(params, grads, slots, rate / 2, scale)


def place(array):
    """The file that it lies in, by its number, and where in that; 0 for memory of its own."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, offset, _, inode, *_ = line.split()
        begin, end = (int(one, 16) for one in where.split("-"))
        if begin <= address < end:
            return f"{inode}:{offset}" if inode != "0" else "own"
    return "nowhere"


def start():
    """Parameters before the first step."""
    return {"w": np.zeros(SIZE, np.float32), "x": np.zeros((37, 71)), "y": np.zeros(3)}


def gradient(params, samples):
    """Of these samples; it depends on every parameter."""
    times = np.float32(1 + samples.mean())
    slope = np.linspace(-1, 1, SIZE).astype(np.float32)
    own = {"w": slope * times, "x": np.full((37, 71), float(times)), "y": np.ones(3)}
    return {key: array + params[key] for key, array in own.items()}


def fingerprint(params):
    """Equal if and only if every bit is."""
    return zlib.crc32(b"".join(np.ascontiguousarray(params[key]).tobytes() for key in "wxy"))


def look_again(params):
    """Say whether they stay as they are while the others train on."""
    before = fingerprint(params)
    print("LEFT", flush=True)
    Path("later").read_text()  # a pipe, until there is something in it
    print("KEPT", fingerprint(params) == before, flush=True)


def train(passes, way):
    """One training, from its parameters to its end; worker 1 looks at what it has if it leaves."""
    optimizer = {"own": Slower, "Adam": Adam, "LAMB": LAMB}.get(way, Momentum)(lr=0.01)
    trainer = spotmpi.Trainer(
        start(), optimizer=optimizer, strategy=SSGD(), seed=3, bucket_mb=BUCKET_MB
    )
    with ExitStack() as after, trainer:
        if way == "leaves" and trainer.worker == 1:
            after.callback(look_again, trainer.params)
        kept = trainer.params["w"]
        # What was taken before the first step shows what counts after every one.
        strided, turned = kept[5::7], trainer.params["x"].T[::-3]
        address = kept.ctypes.data
        done, enough = 0, 0.0
        while not enough:
            for batch in trainer.batches(SAMPLES, batch_size=2, passes=passes or 1):
                grads = gradient(trainer.params, batch)
                if way == "ready":
                    for key in ("w", "y"):
                        trainer.ready(key, grads.pop(key))
                    optimizer.lr = 0.01 / (1 + trainer.steps)  # holds from the next step on
                if trainer.steps == 5 and trainer.worker == 1:
                    if way == "mean":
                        trainer.mean(1.0)
                    if way == "break":
                        break
                    if way == "rate":
                        optimizer.lr = 0.5
                trainer.step(grads)
                assert trainer.params["w"] is kept
                assert kept.ctypes.data == address
                assert (strided == trainer.params["w"][5::7]).all()
                assert (turned == trainer.params["x"].T[::-3]).all()
                print("PLACE", trainer.steps, trainer.worker, place(kept), flush=True)
            done += passes or 1
            enough = passes or trainer.mean(float(Path("enough").exists()))
    print("FINAL", trainer.worker, trainer.steps, fingerprint(trainer.params), done, flush=True)
    return kept


if __name__ == "__main__":
    asked, way = int(sys.argv[1]), " ".join(sys.argv[2:])
    first = train(asked, way)
    if way == "twice":
        after = first.copy()
        train(1, way)
        assert (first == after).all(), "a second training has changed what the first has left"
