"""The workers of a job as torch's process group."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    default_hooks,
    powerSGD_hook,
)
from torch.utils.checkpoint import checkpoint  # noqa: E402

import spotmpi.torch  # noqa: E402
from spotmpi.errors import UsageError  # noqa: E402
from spotmpi.settings import TORCH_PROCESS  # noqa: E402
from spotmpi.torch import process_group  # noqa: E402
from spotmpi.torch_autoload import autoload  # noqa: E402
from spotmpi.torch_hooks import calls  # noqa: E402
from tests.launch.asking import folder_of  # noqa: E402
from tests.launch.conftest import start  # noqa: E402, F401
from tests.running import Running  # noqa: E402
from tests.torch import ddp  # noqa: E402
from tests.torch.test_distributed_optimizer import O, differ, loss_of, module  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The group of a script that runs alone."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    before = sys.excepthook  # which torch replaces
    spotmpi.torch.init_process_group()
    try:
        yield dist.group.WORLD
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = before


def test_a_script_that_runs_alone_is_a_group_of_one(alone: Any) -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "spotmpi")
    assert spotmpi.torch.workers() == (0,)
    there = torch.arange(3.0)
    dist.all_reduce(there)
    assert there.tolist() == [0, 1, 2]


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Calls `torch.distributed.init_process_group` of a worker, and says who was asked."""
    asked = []

    def usual(*how: Any, **known: Any) -> None:
        asked.append("torch")

    for there in (dist, dist.distributed_c10d):
        monkeypatch.setattr(there, "init_process_group", usual)
    monkeypatch.setattr(dist, "get_backend", dist.get_backend)
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", TORCH_PROCESS: str(os.getpid())}.items():
        monkeypatch.setenv(name, value)

    def ours() -> None:
        asked.append("spotmpi")
        dist.group.WORLD = SimpleNamespace()

    monkeypatch.setattr(process_group, "init_process_group", ours)

    def call(*how: Any, **known: Any) -> str:
        autoload()
        dist.init_process_group(*how, **known)
        return asked[-1]

    yield call
    dist.group.WORLD = None


@pytest.mark.parametrize(
    ("how", "known"),
    [
        ((), {}),
        (("gloo",), {}),
        (("GLOO", "env://"), {"rank": 1, "world_size": 4}),
        ((), {"backend": "cpu:gloo", "timeout": None}),
        (("nccl",), {"device_id": torch.device("cpu")}),
        (("cpu:gloo,cuda:nccl",), {}),
    ],
)
def test_a_worker_s_process_group_is_the_job(replaced: Any, how: Any, known: Any) -> None:
    assert replaced(*how, **known) == "spotmpi"


@pytest.mark.parametrize(
    ("how", "known"),
    [
        (("mpi",), {}),
        (("gloo",), {"rank": 0, "world_size": 4}),
        (("gloo",), {"rank": 1, "world_size": 2}),
        (("gloo",), {"store": dist.HashStore()}),
    ],
)
def test_another_group_is_torch_s(replaced: Any, how: Any, known: Any) -> None:
    assert replaced(*how, **known) == "torch"


def test_the_rank_that_a_framework_makes_up_for_a_newcomer_does_not_count(
    replaced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_NEWCOMER", "7")
    assert replaced("gloo", rank=0, world_size=4) == "spotmpi"
    assert replaced("gloo", rank=0, world_size=2) == "torch"


@pytest.fixture
def autoloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only worker of a job, and has imported torch as one."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", TORCH_PROCESS: str(os.getpid())}.items():
        monkeypatch.setenv(name, value)
    for name, there in list(sys.modules.items()):  # which `autoload` changes for good
        if name.startswith("torch.distributed"):
            for function in ("init_process_group", "new_group", "get_backend"):
                if function in vars(there):
                    monkeypatch.setattr(there, function, vars(there)[function])
    autoload()


def test_another_group_of_all_is_the_job_as_well(alone: Any, autoloaded: None) -> None:
    """Torch would wait for the others in a place that they do not know."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, process_group.WorkerGroup)
    assert dist.device_mesh.init_process_group is dist.init_process_group


@pytest.mark.parametrize(("asked", "named"), [(("NCCL",), "nccl"), (("gloo",), "gloo"), ((), None)])
def test_a_script_is_told_the_backend_that_it_asked_for(
    autoloaded: None, asked: Any, named: str | None
) -> None:
    """As torch would name it. Torch itself is told whose it is."""
    with pytest.raises(ValueError, match="has not been initialized"):
        dist.get_backend()
    before = sys.excepthook  # which torch replaces
    dist.init_process_group(*asked)
    try:
        assert dist.get_backend() == dist.get_backend(dist.group.WORLD) == (named or "undefined")
        assert dist.get_backend(dist.new_group()) == dist.get_backend()
        group = dist.new_group(backend="cpu:gloo", device_id=torch.device("cuda", 0))
        assert dist.get_backend(group) == "cpu:gloo"
        assert dist.distributed_c10d.get_backend() == "spotmpi"
    finally:
        dist.destroy_process_group()
        sys.excepthook = before


def test_the_calls_that_are_replaced_are_those_that_a_group_has() -> None:
    assert set(calls.OWN_CALLS) == set(process_group.WorkerGroup.own_calls)


def test_too_much_room_for_what_is_gathered_is_refused(alone: Any) -> None:
    for numbers in (0, 1, 4):
        with pytest.raises(RuntimeError, match="is invalid for input of size"):
            alone._allgather_base(torch.zeros(numbers), torch.zeros(2))
    alone._allgather_base(torch.zeros(0, 3), torch.zeros(0, 3))
    alone._allgather_base(room := torch.zeros(2, 2).T, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert room.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_there_is_one_group_and_one_after_it(alone: Any) -> None:
    with pytest.raises(UsageError, match="has a default process group already"):
        spotmpi.torch.init_process_group()
    dist.destroy_process_group()
    with pytest.raises(UsageError, match=r"call spotmpi.torch.init_process_group\(\) first"):
        spotmpi.torch.workers()
    spotmpi.torch.init_process_group()
    assert spotmpi.torch.workers() == (0,)


def test_ddp_trains_as_the_module_itself_does(alone: Any) -> None:
    plain, trained = module(), module()
    usual, inner = O.AdamW(plain.parameters()), O.AdamW(trained.parameters())
    wrapped = torch.nn.parallel.DistributedDataParallel(trained, bucket_cap_mb=1e-4)
    for step in range(8):
        for of, moved in ((plain, plain), (wrapped, trained)):
            batch = torch.arange(8 * step, 8 * step + 8)
            x, y = _data(batch)
            torch.nn.functional.cross_entropy(of(x), y).backward()
            (usual if moved is plain else inner).step()
            moved.zero_grad()
    assert differ(plain, trained) == 0.0


def _data(batch: Any) -> Any:
    from tests.torch.test_distributed_optimizer import X, Y

    return X[batch], Y[batch]


def test_all_sums_of_a_backward_pass_are_made_together(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = module()
    wrapped = torch.nn.parallel.DistributedDataParallel(trained, bucket_cap_mb=1e-4)
    asked: list[int] = []
    reduce = alone.collectives.reduce
    monkeypatch.setattr(
        alone._collectives, "reduce", lambda them, *a: (asked.append(len(them)), reduce(them, *a))
    )
    for _ in range(3):
        loss_of(wrapped, range(8)).backward()
    assert asked == [1, 2, 2]  # DDP makes its buckets after the first step


@pytest.mark.parametrize("how", ["power", "half", "nested", "unused", "static", "views"])
def test_other_ways_of_ddp_come_to_their_end(alone: Any, how: str) -> None:
    """A hook may wait in C++ for what it asks for; passes may be nested."""
    first, second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.idle = first, second, torch.nn.Linear(3, 3)
            self.idle.requires_grad_(how == "unused")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = self.first
            return self.second(checkpoint(inner, x, use_reentrant=True) if nested else inner(x))

    nested = how == "nested"
    known = {"unused": "find_unused_parameters", "static": "static_graph"}
    options = {known[how]: True} if how in known else {}
    options["gradient_as_bucket_view"] = how == "views"
    wrapped = torch.nn.parallel.DistributedDataParallel(Both(), bucket_cap_mb=1e-3, **options)
    if how == "power":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif how == "half":
        wrapped.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    for _ in range(5):
        wrapped(torch.randn(4, 64, requires_grad=True)).sum().backward()
        with wrapped.no_sync():
            wrapped(torch.randn(4, 64, requires_grad=True)).sum().backward()


def test_a_pass_that_fails_leaves_no_sum_behind(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = module(), module()
    parallel = torch.nn.parallel.DistributedDataParallel
    broken, whole = parallel(first, bucket_cap_mb=1e-4), parallel(second, bucket_cap_mb=1e-4)
    for _ in range(2):
        loss_of(broken, range(8)).backward()
        loss_of(whole, range(8)).backward()

    def fail(_grad: torch.Tensor) -> None:
        raise ValueError("planted")

    with first[0].weight.register_hook(fail), pytest.raises(ValueError, match="planted"):
        loss_of(broken, range(8)).backward()
    (left,) = alone._later
    asked: list[int] = []
    reduce = alone._collectives.reduce
    monkeypatch.setattr(
        alone._collectives, "reduce", lambda them, *a: (asked.append(len(them)), reduce(them, *a))
    )
    loss_of(whole, range(8)).backward()
    assert asked == [2]
    with pytest.raises(RuntimeError, match="the backward pass that asked for this sum has failed"):
        left.call.wait()


def test_a_sum_that_a_hook_asks_for_is_made_there(alone: Any) -> None:
    trained, seen = module(), []

    def add(grad: torch.Tensor) -> None:
        work = dist.all_reduce(grad.clone(), async_op=True)
        assert work.is_completed()
        assert work.get_future().wait() is not None
        dist.all_reduce(total := torch.ones(1))
        seen.append(total.item())

    trained[0].weight.register_hook(add)
    loss_of(trained, range(8)).backward()
    assert seen == [1.0]


def run(folder: Path, *words: object, workers: int = 4) -> Running:
    """A job, to its end."""
    command = sys.executable, "-m", "spotmpi", "run", "-n", workers, *words
    # A socket in a folder of this name would have too long an address.
    own = folder / ("t" * 99)
    own.mkdir(exist_ok=True)
    environ = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(own)}
    running = Running(list(map(str, command)), folder, environ=environ)
    try:
        running.wait()
    finally:
        running.close()
    assert not [*own.glob("pymp-*")], "the loaders of killed workers have left their sockets"
    return running


@pytest.mark.promise("calls of torch.distributed before and after a loss")
def test_each_call_completes_among_those_who_live(tmp_path: Path) -> None:
    check_calls(tmp_path, "cpu")


def check_calls(folder: Path, device: str) -> None:
    """Make all calls with tensors there."""
    running = run(folder, HERE / "calls.py", device)
    assert running.wait() == 0, running.output
    said = [line for line in running.output.splitlines() if "FINAL" in line]
    assert len(said) == 2, running.output


@pytest.mark.promise("an unchanged script for torchrun, with deaths in the backward pass")
@pytest.mark.parametrize("sampler", ["torch", "elastic"])
@pytest.mark.parametrize("deaths", ["", "1@0,3@1", "0@20,2@50", "0@0,1@3,2@3", "3@127", "1@31"])
@pytest.mark.first("0@20,2@50-elastic")
def test_ddp_goes_on_without_those_killed(tmp_path: Path, deaths: str, sampler: str) -> None:
    if not metadata.entry_points(group="torch.backends", name="spotmpi"):
        pytest.skip("spotmpi is not installed as it is now: python -m pip install -e .")
    check_ddp(tmp_path, "cpu", deaths, sampler)


@pytest.mark.matrix
@pytest.mark.parametrize("compiled", ["model", "pass"])
def test_what_torch_compiles_goes_on(tmp_path: Path, compiled: str) -> None:
    check_ddp(tmp_path, "cpu", "0@20,2@50", "torch", compiled)


def check_ddp(
    folder: Path, device: str, deaths: str, sampler: str = "torch", *compiled: str
) -> None:
    """Run the script with these deaths, and check what the others say."""
    running = run(folder, HERE / "ddp.py", device, deaths, sampler, *compiled)
    assert running.wait() == 0, running.output
    finals = [
        line.split("FINAL ")[1].split() for line in running.output.splitlines() if "FINAL " in line
    ]
    dead = {death.replace("~", "@").partition("@")[0] for death in deaths.split(",") if death}
    if "~" not in deaths:
        assert running.output.count("spotmpi: rank 0 is gone") == ("0" in dead)
    ended = {rank for rank, *_ in finals}
    assert ended >= {"0", "1", "2", "3"} - dead, running.output
    assert "~" in deaths or not ended & dead, running.output  # a timer may be too late
    assert len({model for _, model, *_ in finals}) == 1, running.output
    assert all(float(accuracy) > 0.8 for *_, accuracy, _ in finals), running.output
    told = {
        int(path.name.partition("-")[2]): [*map(json.loads, path.read_text().splitlines())]
        for path in folder.glob("used-?")
    }
    sums = told[int(min(ended))][1::2]
    assert all(told[int(rank)][1::2] == sums for rank in ended)
    check_samples(told, sums, sampler, running.output)
    if device == "cpu" and "~" not in deaths:
        assert finals[0][1] == f"{replayed(told, sums):08x}"


def replayed(told: dict[int, list[Any]], sums: list[list[int]]) -> int:
    """Do the training in this process, by torch alone: each step with the mean of the gradients of
    those who had a part in it. Return what the module is known by."""
    torch.manual_seed(ddp.SEED)
    module = ddp.made()
    optimizer = torch.optim.AdamW(module.parameters(), lr=ddp.RATE)
    x, y = ddp.data()
    for number, there in enumerate(sums):
        total = [torch.zeros_like(one) for one in module.parameters()]
        for rank in there:
            _, batch = told[rank][2 * number]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            for one, param in zip(total, module.parameters(), strict=True):
                one.add_(param.grad / 4)
        for one, param in zip(total, module.parameters(), strict=True):
            param.grad = one if len(there) == 4 else (one * 4).div_(len(there))
        optimizer.step()
    return ddp.digest(module)


def check_samples(
    told: dict[int, list[Any]], sums: list[list[int]], sampler: str, output: str
) -> None:
    """Each of 2,048 samples was used in each of four passes, or is said to be lost. ``told``: what
    each worker has told; ``sums``: who had a part in each step."""
    used: Counter[tuple[int, int]] = Counter()
    for number, there in enumerate(sums):
        for rank in there:
            epoch, batch = told[rank][2 * number]
            used.update((epoch, sample) for sample in batch)
    lost = 4 * 2048 - len(used)
    if sampler == "elastic":
        assert lost == 0, output
        assert used.total() - len(used) <= 4 * 2 * (4 + 3 + 2)  # to make numbers even
    else:
        assert max(used.values()) == 1
        said = f"spotmpi: {lost} samples of lost workers were used by nobody" if lost else ""
        assert said in output
        assert output.count("used by nobody") == (lost > 0)


AT_ANY_TIME = [
    f"{seed % 4}~{0.02 * seed:.2f},{(seed + 1) % 4}~{0.02 * seed + 0.1:.2f}" for seed in range(60)
]


@pytest.mark.campaign
@pytest.mark.parametrize("deaths", AT_ANY_TIME)
def test_workers_die_at_any_time(tmp_path: Path, deaths: str) -> None:
    test_ddp_goes_on_without_those_killed(
        tmp_path, deaths, ("torch", "elastic")[AT_ANY_TIME.index(deaths) % 2]
    )


@pytest.mark.matrix
def test_with_torch_off_a_script_makes_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "assert 'RANK' not in os.environ\n"
        "place = dict(rank=int(os.environ['OMPI_COMM_WORLD_RANK']), world_size=2)\n"
        "meet = 'file://' + os.path.abspath('meet')\n"
        "dist.init_process_group('gloo', init_method=meet, **place)\n"
        "dist.all_reduce(total := torch.ones(1))\n"
        "print('FINAL', dist.get_backend(), total.item())\n"
    )
    running = run(tmp_path, "--torch", "off", "own.py", workers=2)
    assert running.output.count("FINAL gloo 2.0") == 2, running.output


@pytest.mark.matrix
@pytest.mark.parametrize("last", ["pass", "dist.destroy_process_group()"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise ValueError('planted')", "ValueError: planted"),
        ("raise SystemExit(3)", "worker 1 on localhost ended with code 3"),
    ],
)
def test_a_script_that_fails_ends_the_job(tmp_path: Path, how: str, said: str, last: str) -> None:
    (tmp_path / "fails.py").write_text(
        "import spotmpi.torch, torch, torch.distributed as dist\n"
        "spotmpi.torch.init_process_group()\n"
        "try:\n"
        "    for step in range(100):\n"
        f"        if step == 5 and dist.get_rank() == 1: {how}\n"
        "        dist.all_reduce(torch.ones(3))\n"
        f"finally: {last}\n"
    )
    running = run(tmp_path, "fails.py", workers=3)
    assert running.wait() in (1, 3), running.output
    assert said in running.output
    assert "LeftAlone" not in running.output


LONG = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group()
done, kills = torch.zeros(1), "kill" in sys.argv and "SPOTMPI_NEWCOMER" not in os.environ
while not done:
    if kills and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print("GOES ON", flush=True)
    done = torch.tensor(float(os.path.exists("enough")))
    dist.all_reduce(done, op=dist.ReduceOp.MAX)
print("FINAL", dist.get_rank(), flush=True)
"""


@pytest.mark.matrix
def test_a_worker_that_is_told_to_leave_ends(start: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "long.py").write_text(LONG)
    running = start("run", "-n", 3, "long.py")
    running.until("GOES ON", 30)
    assert start("shrink", "--worker", 1, "--job", folder_of(running).name).wait() == 0
    (tmp_path / "enough").touch()
    assert running.wait() == 0, running.output
    assert running.output.count("FINAL") == 2
    assert "2 workers finished, 1 left" in running.output


@pytest.mark.matrix
def test_a_worker_that_comes_later_is_turned_away(start: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "long.py").write_text(LONG)
    running = start("run", "-n", 3, "--replace", "long.py", "kill")
    running.until("it can only join where a pass through a DataLoader")
    (tmp_path / "enough").touch()
    assert running.wait() == 0, running.output
    assert running.output.count("FINAL") == 2
    assert "Traceback" not in running.output
