"""A training script with one mistake, named by its first argument: run by test_mistakes."""

import sys

import model
import numpy as np

import spotmpi
from spotmpi.fabric.mpi import calls
from spotmpi.fabric.planes import shared_memory_plane
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

mistake = sys.argv[1]
collective = calls.collective
if mistake == "network":  # MPI has nothing to do in a step where all share memory
    shared_memory_plane.possible = lambda: False


def fail():
    """MPI fails, and nobody is lost."""
    raise calls.MPI.Exception(calls.MPI.ERR_OTHER)


params = model.params()
if mistake == "other-shape" and __import__("os").environ["OMPI_COMM_WORLD_RANK"] == "1":
    params["w"] = np.zeros(6, np.float32)
with spotmpi.Trainer(
    params, optimizer=SGD(lr=0.01), strategy=SSGD(), check_finite=mistake == "nan"
) as trainer:
    mine = trainer.worker == 1
    for batch in trainer.batches(model.SAMPLES, batch_size=4, passes=2):
        loss, grads = model.gradient(trainer.params, batch)
        if trainer.steps == 5 and mine:
            match mistake:
                case "raise":
                    raise ValueError("a bug of worker 1")
                case "shape":
                    grads["w"] = np.zeros((5, 2), np.float32)
                case "dtype":
                    grads["w"] = grads["w"].astype(np.float64)
                case "no-array":
                    grads["b"] = [1.0]
                case "missing":
                    del grads["b"]
                case "nan":
                    grads["w"][2] = np.nan
                case "break":
                    break
                case "mean":
                    trainer.mean(1.0)
                case "twice":
                    trainer.step(grads, loss=loss)
                case "skip":
                    continue
                case "exit":
                    sys.exit(0)
                case "network":
                    calls.collective = lambda comm, call, *its: collective(comm, fail)
                case "write":
                    trainer.params["w"][0] += 1
        if mistake == "everybody" and trainer.steps == 5:
            raise ValueError("a bug of all workers")
        trainer.step(grads, loss=loss)
