"""What ``spotmpi plan`` says: the page, the JSON, and why there is no plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from spotmpi.economy.plan import provision, rental
from spotmpi.economy.plan.outcomes import Estimate
from spotmpi.economy.plan.provision import Candidate, Search
from spotmpi.economy.plan.question import Question
from spotmpi.economy.plan.screen import columns, plain
from spotmpi.economy.plan.selection import Choice, Safe, Selection, Sensitivity
from spotmpi.economy.quantities import Cluster, count_text, dollars, percent, time_text
from spotmpi.errors import UsageError

__all__ = ["as_json", "late_as_json", "no_plan", "page", "too_late"]

_RISKY = "risky"
"""How rows are called that are in time only if the profile is right."""
_MORE = 64
"""More instances than this are not looked at when it is asked which quota would do."""


def page(question: Question, found: Search, chosen: Selection, unknown: Sensitivity | None) -> str:
    """All of it, for people."""
    parts = [
        _opening(question, found, chosen),
        _table(question, chosen),
        _rejected(question, found, chosen),
    ]
    if unknown is not None:
        parts.insert(2, _if_lives_are_short(question, unknown))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _parts(question: Question) -> tuple[float, float]:
    """Of the runs: what so many of them stayed below is said."""
    return 0.5, question.confidence


def _name(part: float) -> str:
    return f"p{100 * part:.6g}"


def _opening(question: Question, found: Search, chosen: Selection) -> list[str]:
    demand, model = question.demand, question.model
    lines = [
        (
            f"{model.name}, {question.work}, within {time_text(demand.deadline_s)}, of "
            f"{count_text(demand.quota)}"
        ),
        f"prices of {question.prices.as_of}{question.prices.age}: {question.prices.source}",
    ]
    if demand.existing:
        wait = demand.startup_s(demand.quota)
        soon = (
            f"new ones train after {time_text(wait)}"
            if wait
            else "new ones are taken to train at once, as nobody knows how soon (--replacement)"
        )
        if dict(demand.quota) == dict(demand.existing):
            soon = "the quota has no more"
        lines.append(f"{count_text(demand.existing)} run already and are kept, {soon}")
    if question.behind:
        lines.append(f"{question.behind.text}; times and costs below are of what is left to do")
    if question.server is None and model.server is not None:
        lines.append("without the parameter server's price (--include-ps counts it)")
    lines.append(
        f"times and costs below are +- {percent(model.error)}, the profile's error, beside chance"
        if model.error is not None
        else "the profile does not say how far off its predicted times and costs may be"
    )
    lines += rental.fates(question.prices, demand.quota, question.terms)
    if question.mixed:
        lines.append(
            "mixed: on-demand nodes take the place of missing spot nodes as soon as an even pace "
            "is not kept, or nothing else is in time, until spot nodes come"
        )
        boots = {
            name: question.terms.of(question.prices.offer(name)).boot_s for name in demand.quota
        }
        if unknown := [name for name, boot_s in boots.items() if boot_s is None]:
            lines.append(
                f"nobody knows how long {', '.join(unknown)} boot, so on-demand nodes are taken to "
                "train at once, and being in time is flattered: say --boot"
            )
    runtime = question.runtime
    if math.isfinite(runtime.checkpoint_every_s):
        lines.append(
            f"undisturbed: no revocation, no checkpoint; the other times hold a checkpoint of "
            f"{time_text(runtime.checkpoint_s)} every {time_text(runtime.checkpoint_every_s)}"
        )
    how = f"all {found.searched:,}" if found.everything else f"{found.searched:,} windows of"
    runs = f"{question.runs} runs" if question.runs > 1 else "1 run"
    lines.append(
        f"searched {how} clusters; of the {len(found.feasible):,} that are fast enough undisturbed "
        f"{len(chosen.tried):,} were simulated; {runs} of each below; listed are those in time in "
        f"{percent(question.confidence)} of the runs or more"
    )
    return lines


def _table(question: Question, chosen: Selection) -> list[str]:
    error, rows = question.model.error, chosen.rows
    sure = _name(question.confidence)
    heads = ["", "cluster", "undisturbed", "time p50", sure, "cost p50", sure, "in time"]
    slower = [] if error is None else [f"if {percent(error)} slower"]
    table = [[*heads, *slower, "on demand", "bottleneck"]]
    named = [(str(number), row) for number, row in enumerate(rows, 1)]
    for name, row in [*named, *((_RISKY, row) for row in chosen.cheaper)]:
        took = [row.lived.seconds_below(part) for part in _parts(question)]
        paid = [row.lived.dollars_below(part) for part in _parts(question)]
        seconds = ["never" if one is None else time_text(one.value) for one in took]
        costs = ["never" if one is None else dollars(one.value) for one in paid]
        table.append(
            [
                name,
                count_text(row.candidate.cluster),
                f"{time_text(row.candidate.seconds)} {dollars(row.candidate.dollars)}",
                *seconds,
                *costs,
                _in_time(question, row),
                *([] if error is None else [_if_slower(question, row)]),
                "-" if row.on_demand is None else dollars(row.on_demand),
                row.bottleneck,
            ]
        )
    if chosen.safe is not None:
        table.append(_safe_cells(question, chosen.safe))
    return [*columns(table), "", *_ranking(question, chosen), _chance(question, rows)]


def _ranking(question: Question, chosen: Selection) -> list[str]:
    """Why the first is the first."""
    if not (error := question.model.error):
        return []
    often = f"in time in {percent(question.confidence)} of the runs"
    longer = f"also if everything takes {percent(error)} longer, which is the profile's error"
    if not chosen.guarded:
        then = percent(chosen.rows[0].slower.within(question.demand.deadline_s).value)
        said = (
            f"do not rely on it: no cluster was found that is {often} {longer}; the first is then "
            f"in time in {then}, and none more often; a longer deadline, a larger quota or a "
            "profile with a smaller error helps"
        )
        return [said]
    lines = [f"the first costs least of those that are {often} {longer}"]
    if chosen.cheaper:
        lines.append(f"{_RISKY}: cheaper, but late too often if everything takes so much longer")
    return lines


def _safe_cells(question: Question, safe: Safe) -> list[str]:
    """The row of what cannot be revoked: time and cost are certain, as far as the model is."""
    one, error = safe.candidate, question.model.error
    time, paid = time_text(one.seconds), dollars(safe.dollars)
    in_time, label = ["100 %"], "safe"
    if error is not None:
        late = question.slower_s(one) > question.demand.deadline_s
        in_time.append("0 %" if late else "100 %")
        label = "" if late else label
    bottleneck = question.model.bottleneck(one.cluster)
    undisturbed = f"{time} {paid}"
    name = f"{count_text(one.cluster)} on demand"
    return [label, name, undisturbed, time, time, paid, paid, *in_time, paid, bottleneck]


def _in_time(question: Question, row: Choice) -> str:
    if unknown := [name for name in question.unknown_lives if row.candidate.cluster.get(name)]:
        return f"not known: no lifetime of {unknown[0]}"
    within = row.lived.within(question.demand.deadline_s)
    return f"{percent(within.value)} ({100 * within.low:.0f}..{percent(within.high)})"


def _if_lives_are_short(question: Question, unknown: Sensitivity) -> list[str]:
    """How the choice depends on what nobody knows."""

    def called(cluster: Cluster | None) -> str:
        return "no cluster of the quota is in time" if cluster is None else count_text(cluster)

    names = ", ".join(question.unknown_lives)
    often = percent(question.confidence)
    lines = [
        f"nobody knows how long {names} live; the choice if it is exponential (in time in {often}):"
    ]
    lines.append(f"  mean {time_text(unknown.long_s)} or more: {called(unknown.first)}")
    if unknown.short_s is None:
        lines.append("  shorter ones: the same, as far as was tried")
        return lines
    then = unknown.then
    there = None if then is None else then.candidate.cluster
    costs = "" if then is None else f", {dollars(then.dollars_at(question.confidence))}"
    lines.append(f"  mean {time_text(unknown.short_s)}: {called(there)}{costs}")
    return lines


def _chance(question: Question, rows: list[Choice]) -> str:
    """How far the runs leave the quantiles open."""
    sure = _name(question.confidence)
    most, unknown = 0.0, []
    for number, row in enumerate(rows, 1):
        lived = row.lived
        quantiles = [
            below(part)
            for part in _parts(question)
            for below in (lived.seconds_below, lived.dollars_below)
        ]
        known = [one for one in quantiles if one is not None]
        off = max((max(1 - q.low / q.value, q.high / q.value - 1) for q in known), default=0.0)
        if math.isfinite(off):
            most = max(most, off)
        else:
            unknown.append(str(number))
    why = "too few runs, or too few that end"
    if len(unknown) == len(rows):
        return f"by chance p50 and {sure} may be off by any amount: {why}"
    said = f"by chance p50 and {sure} are at most {percent(most, 1)} off (95 % intervals: --json)"
    return f"{said}; of {', '.join(unknown)} by any amount: {why}" if unknown else said


def _if_slower(question: Question, row: Choice) -> str:
    """The part of the runs in time if the model is too fast by its error."""
    if any(row.candidate.cluster.get(name) for name in question.unknown_lives):
        return "not known"
    return percent(row.slower.within(question.demand.deadline_s).value)


def _rejected(question: Question, found: Search, chosen: Selection) -> list[str]:
    """Why not another one: what each type does alone, and how many clusters were not right."""
    rows = chosen.rows
    lines = ["rejected:"]
    shown = [dict(row.candidate.cluster) for row in (*rows, *chosen.cheaper)]
    for name in question.demand.quota:
        alone = found.alone.get(name)
        if alone is None and not question.demand.existing:
            lines.append(f"  {name} alone: {_not_predicted(question, name)}")
        elif alone is not None and dict(alone.cluster) not in shown:
            lines.append(f"  {count_text(alone.cluster)}: {_why(question, alone, chosen)}")
    if rest := len(chosen.tried) - len(shown):
        lines.append(f"  {rest:,} simulated ones are late too often, or dearer")
    if more := len(found.feasible) - len(chosen.tried):
        lines.append(f"  {more:,} were not simulated: dearer undisturbed, or late by an estimate")
    if found.late:
        lines.append(f"  {found.late:,} are too slow")
    if found.example is not None:
        lines.append(f"  {found.outside:,} cannot be predicted; {_unpredicted(*found.example)}")
    return lines if len(lines) > 1 else []


def _unpredicted(cluster: Cluster, why: str) -> str:
    return f"of {count_text(cluster)}, for one: {why}"


def _not_predicted(question: Question, name: str) -> str:
    """Why no cluster of one type alone was considered."""
    try:
        provision.predict(question.model, question.demand, {name: 1})
    except UsageError as error:
        return f"cannot be predicted: {error}"
    return "was not searched"


def _why(question: Question, candidate: Candidate, chosen: Selection) -> str:
    deadline_s = question.demand.deadline_s
    over = candidate.seconds - deadline_s
    if over > 0:
        return (
            f"takes {time_text(candidate.seconds)}, {time_text(over)} "
            f"({percent(over / deadline_s)}) too long, and is the fastest of its kind"
        )
    for one in chosen.tried:
        if one.candidate is not candidate:
            continue
        if not one.in_time:
            return f"is in time in {percent(one.lived.within(deadline_s).value)} of the runs only"
        if chosen.guarded and one.is_risky:
            error = percent(question.model.error or 0.0)
            then = percent(one.slower.within(deadline_s).value)
            return f"is in time in {then} of the runs only if everything takes {error} longer"
    more = candidate.dollars - chosen.rows[0].candidate.dollars
    if more < 0:
        return "would be late too often, by an estimate"
    return f"costs {dollars(candidate.dollars)}, {dollars(more)} more than the first"


def no_plan(question: Question, found: Search) -> str:
    """Why there is none: which constraint binds, and by how much."""
    fastest, demand = found.fastest, question.demand
    if fastest is None:
        why = "" if found.example is None else f"; {_unpredicted(*found.example)}"
        return (
            f"no plan: the profile of {question.model.name} predicts no cluster within the quota "
            f"{count_text(demand.quota)}{why}"
        )
    over = fastest.seconds - demand.deadline_s
    looked = "within the quota" if found.everything else "of those windows that were searched"
    said = (
        f"no plan: the fastest cluster {looked}, {count_text(fastest.cluster)}, takes "
        f"{time_text(fastest.seconds)}, {time_text(over)} "
        f"({percent(over / demand.deadline_s)}) more than the deadline of "
        f"{time_text(demand.deadline_s)}"
    )
    more = _more_that_do(question, fastest)
    if more is None:
        said += f"; the deadline binds: {_MORE} more of any one type beside it would not do"
    else:
        name, wanted = more
        lacking = wanted[name] - demand.quota[name]
        if lacking > 0:
            said += (
                f"; the quota binds: with {lacking} more {name} ({count_text(wanted)}) it would be "
                "in time undisturbed"
            )
        else:
            said += f"; but {count_text(wanted)} would be in time undisturbed; say --exhaustive"
    loss = _loss_in_time(question, fastest)
    if loss is not None:
        said += f"; by the deadline {count_text(fastest.cluster)} comes to a loss of {_up(loss)}"
    return said


def _more_that_do(question: Question, fastest: Candidate) -> tuple[str, Cluster] | None:
    """The fewest more instances of one type that would be in time: the type, and all there are."""
    demand = question.demand
    for more in range(1, _MORE + 1):
        for name in demand.quota:
            cluster_ = dict(fastest.cluster)
            cluster_[name] = cluster_.get(name, 0) + more
            try:
                candidate = provision.predict(question.model, demand, cluster_)
            except UsageError:
                continue
            if candidate.seconds <= demand.deadline_s:
                return name, cluster_
    return None


def _up(loss: float) -> str:
    """A loss in three digits, rounded up: what is said must be reached."""
    unit = 10.0 ** (math.floor(math.log10(loss)) - 2)
    return f"{math.ceil(loss / unit) * unit:.3g}"


def _loss_in_time(question: Question, fastest: Candidate) -> float | None:
    """What the fastest cluster comes to by the deadline; None: no loss is asked for."""
    if question.loss is None:
        return None
    demand, there = question.demand, fastest.cluster
    pace = question.model.rate(there) * question.runtime.pace
    able = (demand.deadline_s - demand.startup_s(there)) * pace
    if able <= 0:
        return None
    return question.model.loss_after(there, question.behind.iterations(there) + able)


def too_late(question: Question, found: Search, chosen: Selection) -> str:
    """Why no cluster is in time often enough, and what the best there is comes to."""
    best, demand, sure = chosen.best, question.demand, question.confidence
    within = best.lived.within(demand.deadline_s)
    among = f"{len(found.feasible):,}"
    if not chosen.complete:
        among = f"{len(chosen.tried):,} most promising of the {len(found.feasible):,}"
    said = (
        f"no plan: none of the {among} clusters that are fast enough undisturbed is in time in "
        f"{percent(sure)} of the runs; the best, {count_text(best.candidate.cluster)}, is in "
        f"{percent(within.value)} ({100 * within.low:.0f}..{percent(within.high)})"
    )
    middle, slow = best.lived.dollars_below(0.5), best.lived.seconds_below(sure)
    if middle is not None:
        said += f" for {dollars(middle.value)} (p50)"
    if slow is None:
        return (
            f"{said}; revocations bind: too many runs never end, as lost nodes are not replaced "
            f"(--replacement), or the quota has too few{_or_on_demand(chosen.safe)}"
        )
    return (
        f"{said}; the deadline binds: {percent(sure)} of its runs end within "
        f"{time_text(slow.value)}; a longer deadline, a larger quota or a lower --confidence helps"
        f"{_or_on_demand(chosen.safe)}"
    )


def _or_on_demand(safe: Safe | None) -> str:
    if safe is None:
        return ""
    there, took = count_text(safe.candidate.cluster), time_text(safe.candidate.seconds)
    return f"; on demand {there} takes {took} and costs {dollars(safe.dollars)}"


def late_as_json(question: Question, chosen: Selection, reason: str) -> dict[str, Any]:
    """The same for programs."""
    return {
        "feasible": False,
        "reason": reason,
        "best": _plan(question, chosen.best),
        "on_demand": _safe(chosen.safe),
    }


def _safe(safe: Safe | None) -> dict[str, Any] | None:
    if safe is None:
        return None
    one = safe.candidate
    return {"cluster": dict(one.cluster), "seconds": one.seconds, "dollars": safe.dollars}


def _plan(question: Question, row: Choice) -> dict[str, Any]:
    """One cluster's figures."""

    def sums(below: Callable[[float], Estimate | None]) -> dict[str, Any]:
        return {_name(part): plain(below(part)) for part in _parts(question)}

    error, unknown = question.model.error, set(question.unknown_lives)
    return {
        "cluster": dict(row.candidate.cluster),
        "lifetime_unknown_of": sorted(unknown & row.candidate.cluster.keys()),
        "undisturbed": {
            "iterations": row.candidate.iterations,
            "seconds": row.candidate.seconds,
            "dollars": row.candidate.dollars,
        },
        "seconds": sums(row.lived.seconds_below),
        "dollars": sums(row.lived.dollars_below),
        "in_time": plain(row.lived.within(question.demand.deadline_s)),
        "in_time_if_slower_by_the_error": None
        if error is None
        else plain(row.slower.within(question.demand.deadline_s)),
        "hired_node_seconds": row.lived.hired_s,
        "on_demand_dollars": row.on_demand,
        "bottleneck": row.bottleneck,
    }


def _sensitivity(question: Question, unknown: Sensitivity | None) -> dict[str, Any] | None:
    if unknown is None:
        return None
    then = unknown.then
    return {
        "lifetime_unknown_of": question.unknown_lives,
        "mean_s_or_more": unknown.long_s,
        "cluster": None if unknown.first is None else dict(unknown.first),
        "changes_at_mean_s": unknown.short_s,
        "then": None if then is None else _plan(question, then),
    }


def as_json(
    question: Question, found: Search, chosen: Selection, unknown: Sensitivity | None
) -> dict[str, Any]:
    """All figures, as what becomes JSON; null: never, or nobody knows."""
    rows = chosen.rows
    return {
        "feasible": True,
        "training": question.model.name,
        "work": question.work,
        "model_error": question.model.error,
        "confidence": question.confidence,
        "prices": {"as_of": question.prices.as_of, "source": question.prices.source},
        "deadline_s": question.demand.deadline_s,
        "searched": {
            "clusters": found.searched,
            "all": found.everything,
            "too_slow": found.late,
            "outside_the_model": found.outside,
            "outside_for_example": None
            if found.example is None
            else {"cluster": dict(found.example[0]), "why": found.example[1]},
            "fast_enough_undisturbed": len(found.feasible),
            "simulated": len(chosen.tried),
        },
        "if_lifetimes_are_short": _sensitivity(question, unknown),
        "runs": question.runs,
        "seed": question.seed,
        "plans": [_plan(question, row) for row in rows],
        "in_time_also_if_slower_by_the_error": chosen.guarded if question.model.error else None,
        "risky": [_plan(question, row) for row in chosen.cheaper],
        "on_demand": _safe(chosen.safe),
        "rejected": [
            {
                "cluster": dict(alone.cluster),
                "seconds": alone.seconds,
                "dollars": alone.dollars,
                "why": _why(question, alone, chosen),
            }
            for alone in found.alone.values()
            if all(
                dict(alone.cluster) != dict(row.candidate.cluster)
                for row in (*rows, *chosen.cheaper)
            )
        ],
    }
