"""torchft, to compare with, where it is installed: each worker is a replica of one, over gloo.

It listens on all addresses of the host, as torchft does, until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["is_measured", "steps_of"]

_HOST = "localhost"
_LIMIT = timedelta(seconds=60)
"""Torchft's own default, of its calls and of quorums."""


def is_measured(on_gpu: bool) -> bool:
    """Return True if torchft is installed, and modules are in memory of the host."""
    return not on_gpu and find_spec("torchft") is not None


def steps_of(
    side: Any, rank: int, size: int, gather: Callable[[Any], Mapping[int, Any]]
) -> Callable[[], None]:
    """Wrap the module and the optimizer of a side, as torchft's README says; return a step of
    it. Collective. ``gather``: returns each worker's value."""
    # By name: it is no dependency, and type checkers may not have it.
    torchft: Any = import_module("torchft")
    dist: Any = import_module("torch.distributed")
    # It lives as long as this process, which keeps it by the step that is returned.
    house = None
    if rank == 0:
        server: Any = import_module("torchft.coordination").LighthouseServer
        house = server(bind=f"{_HOST}:0", min_replicas=size)
    store = dist.TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)

    def state() -> dict[str, Any]:
        return {"module": side.module.state_dict(), "optimizer": side.optimizer.state_dict()}

    def load(found: Mapping[str, Any]) -> None:
        side.module.load_state_dict(found["module"])
        side.optimizer.load_state_dict(found["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=_LIMIT),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=size,
        rank=0,
        world_size=1,
        store_addr=_HOST,
        store_port=store.port,
        lighthouse_addr=gather(house.address() if house else "")[0],
        replica_id=f"worker-{rank}",
    )
    optimizer = torchft.Optimizer(manager, side.optimizer)
    side.module = torchft.DistributedDataParallel(manager, side.module)

    def step(_kept: Any = (house, store)) -> None:
        optimizer.zero_grad()  # which begins the step's quorum
        side.backward()
        optimizer.step()  # which asks all whether to take it

    return step
