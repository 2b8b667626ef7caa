"""`spotmpi.torch` with modules on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.arrays.backend import DEVICE  # noqa: E402
from spotmpi.torch import DistributedOptimizer  # noqa: E402
from tests.launch.conftest import start  # noqa: E402, F401
from tests.torch.conftest import no_caches  # noqa: E402, F401
from tests.torch.test_distributed_optimizer import (  # noqa: E402
    OPTIMIZERS,
    O,
    differ,
    loss_of,
    module,
    train_both,
)
from tests.torch.test_newcomers import check_newcomers  # noqa: E402
from tests.torch.test_process_group import check_calls, check_ddp  # noqa: E402
from tests.torch.test_real import check_killed  # noqa: E402
from tests.torch.test_resumed import check_resumed  # noqa: E402
from tests.torch.test_sharded import check_lost_part, check_replicas  # noqa: E402

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    **OPTIMIZERS,
    "fused": (O.AdamW, {"lr": 0.01, "fused": True}),
    "capturable": (O.AdamW, {"lr": 0.01, "capturable": True}),
    "one by one": (O.AdamW, {"lr": 0.01, "foreach": False}),
}


@contextmanager
def stream(own: bool) -> Iterator[None]:
    """A block in a stream of its own, or in the usual one."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream() if own else None):
        yield
        torch.cuda.synchronize()


@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_it_trains_as_the_loop_without_it_does(name: str, own: bool) -> None:
    kind, known = KINDS[name]
    with stream(own):
        plain, trained = module().cuda(), module().cuda()
        usual, inner = kind(plain.parameters(), **known), kind(trained.parameters(), **known)
        with DistributedOptimizer(inner, module=trained) as opt:
            assert opt._training.model.layout.backend is DEVICE
            train_both(opt, trained, usual, plain, 2)
        assert differ(plain, trained) < 1e-4


def test_half_precision_with_a_scaler_and_a_compiled_module() -> None:
    trained = module().cuda()
    inner = O.AdamW(trained.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**60, growth_interval=100)
    quick = torch.compile(trained, backend="eager")
    before = loss_of(trained, range(64)).item()
    with DistributedOptimizer(inner, module=trained, scaler=scaler) as opt:
        for batch in opt.batches(64, batch_size=8, passes=12):
            with torch.autocast("cuda", torch.float16):
                loss = loss_of(quick, batch)
            scaler.scale(loss).backward()
            opt.step(loss)
    assert scaler.get_scale() < 2.0**40
    assert loss_of(trained, range(64)).item() < before


@pytest.mark.parametrize("strategy", ["ssgd", "localsgd:h=4", "diloco:h=8", "sma", "adpsgd"])
def test_a_torch_script_goes_on_without_those_killed(tmp_path: Path, strategy: str) -> None:
    check_killed(tmp_path, strategy, "cuda")


def test_each_call_of_torch_distributed_completes(tmp_path: Path) -> None:
    check_calls(tmp_path, "cuda")


@pytest.mark.parametrize("deaths", ["", "1@0,3@1", "0@20,2@50", "3@127"])
def test_ddp_goes_on_without_those_killed(tmp_path: Path, deaths: str) -> None:
    check_ddp(tmp_path, "cuda", deaths)


@pytest.mark.parametrize(("deaths", "sampler"), [("2@1", "torch"), ("0@1", "elastic")])
def test_newcomers_of_ddp_hold_what_all_hold(
    start: Any,  # noqa: F811
    tmp_path: Path,
    deaths: str,
    sampler: str,
) -> None:
    check_newcomers(start, tmp_path, "cuda", deaths, sampler)


@pytest.mark.parametrize("sampler", ["torch", "elastic"])
def test_ddp_goes_on_from_a_checkpoint_within_a_pass(
    start: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
) -> None:
    check_resumed(start, monkeypatch, "cuda", sampler)


@pytest.mark.parametrize(("death", "left"), [("3@5", "01"), ("0@5", "23"), ("", "0123")])
def test_another_replica_of_fsdp_goes_on(start: Any, death: str, left: str) -> None:  # noqa: F811
    check_replicas(start, "cuda", death, left)


def test_a_lost_part_of_fsdp_is_named(start: Any) -> None:  # noqa: F811
    check_lost_part(start, "cuda", 1, "1@5", 1)
