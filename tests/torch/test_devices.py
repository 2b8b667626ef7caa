"""`spotmpi.torch` with a module on a device. It is none here: CuPy's stand-in has its memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import spotmpi  # noqa: E402
from spotmpi.arrays.backend import DEVICE, HOST  # noqa: E402
from spotmpi.torch import (  # noqa: E402
    DistributedOptimizer,
    collectives,
    distributed_optimizer,
    torch_optimizer,
)
from spotmpi.torch import tensors as shared  # noqa: E402
from tests import fake_cupy as cupy  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import deaths  # noqa: E402
from tests.torch.test_collectives import Asking, agree  # noqa: E402
from tests.torch.test_distributed_optimizer import O, loss_of, module  # noqa: E402


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's tensors are on a device, for all that spotmpi can see."""

    def array_of(tensor: Any) -> Any:
        values = tensor.detach().contiguous().numpy()
        return cupy.ndarray(0, "u1", None, values)

    def tensor_of(array: Any) -> Any:
        assert isinstance(array, cupy.ndarray)  # nothing of the host's is among them
        return torch.from_numpy(array._is)

    for name, instead in (("array_of", array_of), ("tensor_of", tensor_of)):
        for where in (shared, collectives, distributed_optimizer, torch_optimizer):
            monkeypatch.setattr(where, name, instead, raising=where is shared)
    # Torch works in the same stream, so what was given to it before is done.
    monkeypatch.setattr(cupy.Stream, "put", lambda _stream, work: work())
    with cupy.installed():
        yield


def trained(strategy: str) -> tuple[Any, Any]:
    """Train a module; return it, and its training."""
    of = module()
    inner = O.AdamW(of.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
    known: dict[str, Any] = {"module": of, "scaler": scaler}
    known["strategy"] = spotmpi.strategies.named(strategy)
    with DistributedOptimizer(inner, **known) as opt:
        for batch in opt.batches(64, batch_size=8, passes=2):
            scaler.scale(loss_of(of, batch)).backward()
            if opt.steps == 5:
                next(of.parameters()).grad[0] = torch.nan
            opt.step()
        with opt.agreed():
            return {name: one.clone() for name, one in of.state_dict().items()}, opt


@pytest.mark.parametrize("strategy", ["ssgd", "localsgd:h=3", "diloco:h=4", "sma"])
def test_a_module_on_a_device_has_the_bits_of_one_on_the_host(
    strategy: str, request: pytest.FixtureRequest
) -> None:
    host, opt = trained(strategy)
    assert opt._training.model.layout.backend is HOST
    request.getfixturevalue("on_device")
    device, opt = trained(strategy)
    assert opt._training.model.layout.backend is DEVICE
    assert all(torch.equal(host[name], device[name]) for name in host)


@pytest.mark.usefixtures("on_device")
def test_calls_of_all_workers_go_on_with_tensors_of_a_device(tmp_path: Path) -> None:
    results = simulated.campaign(
        Asking(tmp_path / "calm", 3),
        range(12),
        lambda events, seed: {"kills": deaths(3, events, seed)},
        agree,
    )
    assert any(len(result.finals) < 3 for result in results)


def test_a_module_on_two_devices_is_refused() -> None:
    of = module()
    of[3].to("meta")
    with pytest.raises(spotmpi.UsageError) as refused:
        DistributedOptimizer(O.SGD(of.parameters()), module=of)
    assert "parameter 3.weight is on meta, others are on cpu: spotmpi trains" in str(refused.value)


def test_a_module_nowhere_is_refused() -> None:
    of = module().to("meta")
    with pytest.raises(spotmpi.UsageError, match="in memory of the host or of CUDA, not meta"):
        DistributedOptimizer(O.SGD(of.parameters()), module=of)


def test_a_gpu_without_cupy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    there = SimpleNamespace(device=torch.device("cuda:1"))
    there.detach = there.contiguous = lambda: there
    with pytest.raises(spotmpi.UsageError, match="the module is on cuda:1, and there is no CuPy"):
        shared.array_of(there)


def test_arrays_and_tensors_share_their_memory() -> None:
    array = np.zeros(3, "float32")
    tensor = shared.tensor_of(array)
    tensor += 2
    assert shared.array_of(tensor) is not array
    assert shared.array_of(tensor).ctypes.data == array.ctypes.data
    assert array.tolist() == [2, 2, 2]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CUDA as CuPy and torch show it."""
    shown = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 0),
        get_current_stream=lambda: SimpleNamespace(ptr=7),
    )
    monkeypatch.setattr(shared, "_cupy", lambda device: SimpleNamespace(cuda=shown))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    return shown


def test_a_device_that_is_not_the_current_one_is_refused(cuda: Any) -> None:
    with pytest.raises(spotmpi.UsageError, match=r"call torch.cuda.set_device\(1\) first"):
        shared.stream_of(torch.device("cuda:1"))


def test_a_step_in_another_stream_is_refused(cuda: Any) -> None:
    shared.check_stream(torch.device("cuda:0"))
    shared.check_stream(torch.device("cpu"))
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=8)
    with pytest.raises(spotmpi.UsageError, match="another CUDA stream than the one in which the"):
        shared.check_stream(torch.device("cuda:0"))
