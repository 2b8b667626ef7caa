"""``spotmpi plan --follow``: a training that runs, planned again and again until it ends."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence

from spotmpi.economy.following import sources
from spotmpi.economy.following.advice import Advice, Fleet, Outlook, advise
from spotmpi.economy.following.hosts_command import Done, HostsCommand
from spotmpi.economy.following.nodes import Node, Nodes
from spotmpi.economy.following.sources import Job, Source
from spotmpi.economy.plan.question import Question
from spotmpi.economy.quantities import Cluster, count_text, dollars, percent, time_text
from spotmpi.errors import UsageError
from spotmpi.launch.commands.client import Gone
from spotmpi.launch.start import temporary_job

__all__ = ["LATE", "follow"]

LATE = 3
"""Exit code of a training that has ended, and not in time with what was asked for."""

_LOOK_S = 1.0
_LEAVES_S = 60.0
"""Workers of a host that is to be returned have so long to leave it."""
_COMES_S = 600.0
"""A host that was asked for has so long to come, and ..."""
_STARTS = 3.0
"""... so many times what the price list says at least."""


def follow(
    question: Question,
    name: str,
    told: Mapping[str, Node],
    every_s: float,
    apply: Sequence[str] | None,
) -> int:
    """Watch until it ends, and say how it stands every ``every_s`` seconds; with ``apply``, get and
    return hosts. Blocking; the exit code. Gone, UsageError or TraceError say what is wrong."""
    with temporary_job.ended_by_signals(), sources.follow(name) as source:
        if apply is not None and not isinstance(source, Job):
            raise UsageError("--apply needs a job to take hosts from or to give them to, no trace")
        nodes = Nodes(told, list(question.demand.quota))
        hands = None
        if apply is not None and isinstance(source, Job):
            hands = _Hands(source, nodes, question, HostsCommand(apply))
        try:
            return _Watch(question, source, nodes, hands).run(every_s)
        finally:
            if hands is not None:
                hands.close()


class _Watch:
    def __init__(
        self, question: Question, source: Source, nodes: Nodes, hands: _Hands | None
    ) -> None:
        self._question, self._source, self._nodes, self._hands = question, source, nodes, hands
        self._speed: float | None = None
        self._trouble = ""
        self._before: Advice | None = None

    def run(self, every_s: float) -> int:
        source, hands = self._source, self._hands
        due = 0.0
        while True:
            source.look()
            if source.trouble != self._trouble:
                self._trouble = source.trouble
                if self._trouble:
                    _say(self._trouble)
            if source.end is not None:
                return self._ended(source.end)
            if hands is not None:
                hands.look()
            if time.monotonic() >= due and source.watched.steps and not source.trouble:
                due = time.monotonic() + every_s
                self._advise()
            poll = select.poll()
            source.register(poll)
            poll.poll(1000 * min(_LOOK_S, every_s))

    def _advise(self) -> None:
        watched = self._source.watched
        asked = Fleet({}) if self._hands is None else self._hands.asked
        present = self._nodes.cluster(watched.hosts)
        fleet = Fleet(
            present,
            self._nodes.cluster(watched.hosts, on_demand=True),
            _sum(self._nodes.cluster(self._source.coming), asked.coming),
        )
        spent = self._spent()
        try:
            advice = advise(self._question, watched, fleet, self._speed)
        except UsageError as error:
            advice = Advice(why=str(error))
        self._speed = advice.speed or self._speed
        _say(self._standing(fleet, spent), *_lines(self._question, advice, spent))
        before, self._before = self._before, advice
        if self._hands is not None and before is not None and _alike(before, advice):
            self._hands.act(advice)

    def _spent(self) -> float:
        watched, question = self._source.watched, self._question
        return self._nodes.spent(watched.stays, watched.elapsed_s, question.prices, question.terms)

    def _standing(self, fleet: Fleet, spent: float) -> str:
        watched = self._source.watched
        loss = "" if watched.loss is None else f", loss {watched.loss:.4g}"
        coming = f" (coming: {count_text(fleet.coming)})" if fleet.coming else ""
        return (
            f"{time_text(watched.elapsed_s)} of {time_text(self._question.demand.deadline_s)}: "
            f"step {watched.steps}{loss}, on {count_text(fleet.present)}{coming}; "
            f"{dollars(spent)} so far"
        )

    def _ended(self, end: sources.End) -> int:
        watched, question = self._source.watched, self._question
        late = watched.elapsed_s > question.demand.deadline_s
        loss = "" if watched.loss is None else f" at a loss of {watched.loss:.4g}"
        wanted = ""
        if question.loss is not None and (watched.loss is None or watched.loss > question.loss):
            wanted = f", and not {question.loss:g}, which was asked for"
        when = "later than" if late else "within"
        _say(
            end.said,
            f"after {time_text(watched.elapsed_s)}, {when} the deadline of "
            f"{time_text(question.demand.deadline_s)}{loss}{wanted}; it cost "
            f"{dollars(self._spent())} by the price list",
        )
        return 0 if end.in_order and not late and not wanted else LATE


class _Hands:
    """What does as it is advised: the user's command, and `spotmpi shrink`."""

    def __init__(self, job: Job, nodes: Nodes, question: Question, command: HostsCommand) -> None:
        self._job, self._nodes, self._question, self._command = job, nodes, question, command
        self._wanted: list[tuple[str, float]] = []
        """Types that were asked for, and until when they are waited for."""
        self._seen: set[str] = set()
        self._leaving: list[str] = []
        self._patience = 0.0

    @property
    def asked(self) -> Fleet:
        """What was asked for and is not seen yet."""
        found: dict[str, int] = {}
        for name, _ in self._wanted:
            found[name] = found.get(name, 0) + 1
        return Fleet({}, coming=found)

    def close(self) -> None:
        """End the command, if it runs."""
        self._command.close()

    def look(self) -> None:
        """See who has come, how the command went, and whether a host is empty by now."""
        self._meet()
        done = self._command.look()
        if done is not None:
            self._take(done)
        if self._leaving and self._command.ready:
            empty = set(self._leaving) <= self._job.gone
            if empty or time.monotonic() > self._patience:
                hosts, self._leaving = self._leaving, []
                node = self._nodes.of(hosts[0])
                self._run("return", node.instance, _market(node.on_demand), *hosts)

    def act(self, advice: Advice) -> None:
        """Do one thing of what is advised."""
        if not self._command.ready or self._leaving:
            return
        if advice.add:
            name, count = next(iter(advice.add.items()))
            self._run("get", name, str(count), _market(advice.on_demand))
        elif advice.drop:
            self._drop(*next(iter(advice.drop.items())))

    def _run(self, *words: str) -> None:
        _say(f"runs your command: {' '.join(words)}")
        self._command.begin(*words)
        if words[0] == "get":
            start = self._question.terms.of(self._question.prices.offer(words[1])).start_s or 0.0
            until = time.monotonic() + max(_COMES_S, _STARTS * start)
            self._wanted += [(words[1], until)] * int(words[2])

    def _take(self, done: Done) -> None:
        what, name = done.words[0], done.words[1]
        if done.problem:
            _say(f"your command ({' '.join(done.words)}) failed: {done.problem}; it is tried again")
        if what != "get":
            return
        count = int(done.words[2])
        if done.problem:
            for _ in range(count):
                self._forget(name)
            return
        if done.names and len(done.names) < count:
            _say(f"your command got {len(done.names)} of {count} {name}")
            for _ in range(count - len(done.names)):
                self._forget(name)
            count = len(done.names)
        names = [one for one in done.names if one not in self._seen]
        self._nodes.expect(Node(name, done.words[3] == _market(True)), names, count)

    def _meet(self) -> None:
        there = {*self._job.watched.hosts, *self._job.coming}
        new, self._seen = there - self._seen, self._seen | there
        for host in new if self._wanted else ():
            self._forget(self._nodes.of(host).instance)
        now = time.monotonic()
        for name, until in self._wanted:
            if until < now:
                _say(
                    f"a host of type {name} that your command got has not come: see whether it "
                    "runs, and is paid"
                )
        self._wanted = [one for one in self._wanted if one[1] >= now]

    def _forget(self, name: str) -> None:
        for one in self._wanted:
            if one[0] == name:
                self._wanted.remove(one)
                return

    def _drop(self, name: str, count: int) -> None:
        of_type = [one for one in self._job.watched.hosts if self._nodes.of(one).instance == name]
        # Those on demand first; then those that came last.
        of_type.sort(key=lambda one: self._nodes.of(one).on_demand)
        hosts = of_type[-count:]
        market = self._nodes.of(hosts[-1]).on_demand
        hosts = [one for one in hosts if self._nodes.of(one).on_demand == market]
        try:
            for host in hosts:
                self._job.shrink(host)
        except (UsageError, Gone) as error:
            _say(f"{', '.join(hosts)} cannot be returned: {error}")
            return
        _say(f"the workers of {', '.join(hosts)} leave")
        self._leaving, self._patience = hosts, time.monotonic() + _LEAVES_S


def _lines(question: Question, advice: Advice, spent: float) -> list[str]:
    if advice.reached:
        return ["  what was asked for is reached; the training goes on until its script ends"]
    lines = []
    if advice.speed is not None:
        lines.append(
            f"  {percent(advice.part)} done, at {advice.speed:.2f} times the speed that the "
            "profile expects"
        )
    keep, why = advice.keep, advice.why
    if keep is None:
        return [*lines, f"  no advice: {why}"]
    lines.append(f"  as it is: {_outlook(question, keep, spent)}")
    words = [f"add {count_text(advice.add)}" + " on demand" * advice.on_demand] * bool(advice.add)
    words += [f"drop {count_text(advice.drop)}"] * bool(advice.drop)
    if not words:
        return [*lines, f"  keep it: {why or 'no cluster of the quota is cheaper and in time'}"]
    outlook = "" if advice.to is None else f": {_outlook(question, advice.to, spent)}"
    return [*lines, f"  {', '.join(words)}{outlook}; {why}"]


def _outlook(question: Question, outlook: Outlook, spent: float) -> str:
    sure = f"p{100 * question.confidence:.6g}"
    ends = "never ends in half of the runs"
    if outlook.middle_s is not None:
        last = "never" if outlook.sure_s is None else time_text(outlook.sure_s)
        ends = f"ends in {time_text(outlook.middle_s)} ({sure} {last})"
    paid = "" if outlook.dollars is None else f", {dollars(spent + outlook.dollars)} in all"
    return f"{percent(outlook.in_time.value)} in time, {ends}{paid}"


def _alike(one: Advice, other: Advice) -> bool:
    """Whether they say the same: hosts are got and returned by what has held for two looks."""
    return (one.add.keys(), one.drop.keys()) == (other.add.keys(), other.drop.keys())


def _market(on_demand: bool) -> str:
    return "on-demand" if on_demand else "spot"


def _sum(one: Cluster, other: Cluster) -> Cluster:
    names = dict.fromkeys([*one, *other])
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}


def _say(*lines: str) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {lines[0]}",
        *(f"         {one}" for one in lines[1:]),
        sep="\n",
        flush=True,
    )
