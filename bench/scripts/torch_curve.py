"""A training by DistributedDataParallel that writes down how its loss falls.

A script for ``spotmpi run`` (`curves` starts it): ``torch_curve.py FILE SAMPLER EPOCHS SEED``. It
trains as ``jobs/pytorch/train_ddp.py`` does. The first worker that lives appends a line of JSON to
FILE every 20 batches and at the end: the samples that were used by then, and the loss of letters
that are not trained on.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import spotmpi.torch

_JOB = Path(__file__).resolve().parents[2] / "jobs" / "pytorch" / "train_ddp.py"
_SAMPLERS = {
    "DistributedSampler": DistributedSampler,
    "ElasticSampler": spotmpi.torch.ElasticSampler,
}
_EVERY = 20
_APART = 8
"""Of the letters that are not trained on, one piece in so many is looked at."""


def main(file: Path, sampler_name: str, epochs: int, seed: int) -> None:
    """One worker of the job, to its end."""
    torch.set_num_threads(1)
    dist.init_process_group()
    job = SimpleNamespace(**runpy.run_path(str(_JOB)))
    letters, train, test = job.letters("cpu")
    places = torch.arange(0, len(test) - job.LENGTH, _APART * job.LENGTH)
    starts = range(0, len(train) - job.LENGTH, job.LENGTH)
    sampler = _SAMPLERS[sampler_name](starts, seed=seed)
    torch.manual_seed(seed)
    model = DistributedDataParallel(job.Model(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.RATE)
    used = 0

    def write() -> None:
        if dist.get_rank() != min(spotmpi.torch.workers()):
            return
        with torch.no_grad():
            loss = job.loss_of(model.module, test, places).item()
        with file.open("a") as written:
            written.write(json.dumps([used, round(loss, 4)]) + "\n")

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, where in enumerate(DataLoader(starts, job.BATCH, sampler=sampler)):
            if batch % _EVERY == 0:
                write()
            loss = job.loss_of(model, train, where)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            used += len(where) * len(spotmpi.torch.workers())
    write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
