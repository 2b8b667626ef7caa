"""A torch script for `test_real`: two workers kill themselves in a hook of the backward pass.

``killed.py DEVICE``: where the module is. In memory of the host its gradients are given early, and
the workers die when they have given all but the last ones.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from typing import Any

import torch

import spotmpi.torch

DEATHS = {0: 20, 2: 50}


def main() -> None:
    """Train, and say what came of it."""
    device = sys.argv[1]
    torch.manual_seed(os.getpid())  # all begin with the first worker's parameters all the same
    layers = torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(64, 3)).to(device)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2048, 20, generator=generator).to(device)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.003)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=4000)
    known: dict[str, Any] = {"module": module, "schedulers": [scheduler], "scale_lr": "none"}
    known |= {"overlap": device == "cpu", "bucket_mb": 0.002}
    with spotmpi.torch.DistributedOptimizer(optimizer, **known) as opt:

        def die(_grad: torch.Tensor) -> None:
            if opt.steps >= DEATHS.get(opt.worker, 10**9):
                os.kill(os.getpid(), signal.SIGKILL)

        module[0].weight.register_hook(die)
        for batch in opt.batches(len(x), batch_size=16, passes=6):
            loss = torch.nn.functional.cross_entropy(module(x[batch]), y[batch])
            loss.backward()
            opt.step(loss)
        with opt.agreed(), torch.no_grad():
            module.eval()
            accuracy = (module(x).argmax(1) == y).float().mean().item()
            held = b"".join(one.cpu().numpy().tobytes() for one in module.state_dict().values())
        print(f"FINAL {opt.worker} {zlib.crc32(held):08x} {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
