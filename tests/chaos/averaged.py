"""What the strategies that average models must come to, written down once more: worker by worker,
with NumPy, from a trace. Nothing of `spotmpi.operators` or of `spotmpi.replay` is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from spotmpi.arrays.layout import Layout
from spotmpi.operators import Apply, Broadcast, Every, Narrow
from spotmpi.strategies import EASGD, SMA, DiLoCo, LocalSGD, Lookahead, Strategy
from spotmpi.trace.replay import Rests, bucket_mb_of, summed

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "localsgd": lambda: LocalSGD(h=3),
    "sma": lambda: SMA(pull=0.75, momentum=0.5),
    "easgd": lambda: EASGD(every=2, pull=0.5),
    "lookahead": lambda: Lookahead(every=4, mix=0.25),
    "diloco": lambda: DiLoCo(h=3, outer=0.5, momentum=0.75),
    "streamed": lambda: DiLoCo(h=8, outer=0.5, momentum=0.75, fragments=2, delay=2, mix=0.25),
    "diloco, narrowed": lambda: Narrow("int8") >> DiLoCo(h=4, outer=0.75, momentum=0.5),
    "broadcast": lambda: Strategy(Apply() >> Every(3, Broadcast())),
    "broadcast, narrowed": lambda: Narrow("int8") >> Strategy(Apply() >> Broadcast()),
}
LONGEST = {
    "localsgd": 3,
    "easgd": 2,
    "diloco": 3,
    "streamed": 4,
    "diloco, narrowed": 4,
    "broadcast": 3,
}
"""Steps of a round, where that is not 1."""
_DILOCO = {
    "diloco": (0.5, 0.75, 0.0),
    "streamed": (0.5, 0.75, 0.25),
    "diloco, narrowed": (0.75, 0.5, 0.0),
}
_ELASTIC = {"sma": (0.75, 0.5), "easgd": (0.5, 0.0)}


def _copies(flats: list[Any]) -> list[Any]:
    return [flat.copy() for flat in flats]


class _Worker:
    """Its own parameters, and what its optimizer remembers."""

    def __init__(self, layout: Layout, model: list[Any], optimizer: Any) -> None:
        self.params = _copies(model)
        self.slots = optimizer.remember(layout)


def truth(name: str, records: Iterable[dict], params: Any, gradient: Any, optimizer: Any) -> Any:
    """The model of all that a trace must lead to; and each worker's own at its end."""
    records = list(records)
    layout = Layout.of(params, bucket_mb_of(records))
    model = layout.allocate()
    layout.pack(params, model, 1.0)
    more = [np.zeros_like(flat) for flat in model]
    if name == "lookahead":
        more = _copies(model)
    workers: dict[int, _Worker] = {}
    shared = _Worker(layout, model, optimizer)
    rests = Rests()
    for steps in _rounds(records):
        if not steps:
            workers, rests = {}, Rests()
            continue
        members = [part["worker"] for part in steps[-1]["contributions"]]
        workers = {one: workers.get(one) or _Worker(layout, model, optimizer) for one in members}
        shares = dict.fromkeys(members, 0.0)
        gradients = {one: layout.allocate() for one in members}
        sent: dict[int, list[Any]] = {}
        for number, record in enumerate(steps, 1):
            for part in record["contributions"]:
                if not part["weight"]:
                    continue
                who = workers[part["worker"]]
                shares[part["worker"]] += part["weight"]
                at = model if name == "lookahead" else who.params
                found = gradient(layout.views(at), np.asarray(part["samples"]))
                if name == "lookahead":
                    layout.pack(found, gradients[part["worker"]], part["weight"])
                    continue
                own = layout.allocate()
                layout.pack(found, own, 1.0)
                optimizer.update(who.params, own, who.slots, float(record["rate"]), 1.0)
            if number == steps[0].get("sent", len(steps)):
                sent = {one: _copies(who.params) for one, who in workers.items()}
        if "shares" in steps[0]:
            shares = dict(zip(shares, steps[0]["shares"], strict=True))
        which = steps[0].get("buckets", range(len(model)))
        weight = sum(shares.values())
        if not weight:
            continue
        brought = {}
        for one, share in shares.items():
            if not share:
                continue
            if name == "lookahead":
                brought[one] = gradients[one]
            elif name.startswith("broadcast"):
                counts = not brought
                brought[one] = [(w if counts else np.zeros_like(w)) for w in workers[one].params]
            elif name in _DILOCO:
                brought[one] = [
                    _in(model[b], share) * model[b] + _in(model[b], -share) * sent[one][b]
                    for b in which
                ]
            else:
                brought[one] = [_in(w, share) * w for w in workers[one].params]
        sums = summed(brought, steps[-1], rests)
        if name == "lookahead":
            rate = float(steps[-1]["rate"])
            optimizer.update(model, sums, shared.slots, rate, 1.0 / weight)
            if (steps[-1]["step"] + 1) % 4 == 0:
                for w, slow in zip(model, more, strict=True):
                    slow[...] = _in(w, 0.75) * slow + _in(w, 0.25) * w
                    w[...] = slow
            continue
        active = sum(map(bool, shares.values()))
        for number, total in zip(which, sums, strict=True):
            w, v = model[number], more[number]
            if name in _ELASTIC:
                pull, momentum = _ELASTIC[name]
                v[...] = _in(w, momentum) * v + _in(w, pull / weight) * total
                v[...] = v + _in(w, -pull) * w
                for who in workers.values():
                    own = who.params[number]
                    own[...] = _in(w, 1.0 - pull / active) * own + _in(w, pull / active) * w
                w += v
                continue
            if name in _DILOCO:
                rate, momentum, mix = _DILOCO[name]
                v[...] = _in(w, momentum) * v + _in(w, 1.0 / weight) * total
                w -= _in(w, rate * momentum) * v
                w -= _in(w, rate) * (_in(w, 1.0 / weight) * total)
                for who in workers.values():
                    own = who.params[number]
                    own[...] = _in(w, mix) * own + _in(w, 1.0 - mix) * w
                continue
            if name.startswith("broadcast"):
                w[...] = 0 + total
            else:
                w[...] = _in(w, 1.0 / weight) * total
            for who in workers.values():
                who.params[number][...] = w
    if name == "lookahead":
        return layout.views(model), {}
    own = {one: layout.views(who.params) for one, who in workers.items()}
    return layout.views(model), own


def _in(like: Any, number: float) -> Any:
    return like.dtype.type(number)


def _rounds(records: list[dict]) -> list[list[dict]]:
    """The steps of each; nothing in the place of a resume."""
    rounds: list[list[dict]] = []
    for record in records:
        if record["event"] == "resume":
            rounds = [steps for steps in rounds if steps and steps[0]["step"] < record["step"]]
            rounds.append([])
        elif record["event"] == "step":
            if rounds and rounds[-1] and rounds[-1][-1]["round"] == record["round"]:
                rounds[-1].append(record)
            else:
                rounds.append([record])
    return rounds
