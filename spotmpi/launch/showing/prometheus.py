"""Figures of a job as Prometheus reads them: the one door to prometheus-client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from spotmpi.launch.showing.figures import CAUSES, Figures

__all__ = ["KIND", "page"]

KIND = CONTENT_TYPE_PLAIN_0_0_4
"""The Content-Type of `page`."""


def page(figures: Figures) -> Callable[[], bytes]:
    """What makes the text of them, as they are then."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Job(figures))
    return lambda: bytes(generate_latest(registry))


class _Job(Collector):
    """All metrics of one job."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> list[Metric]:
        """Nothing, so that registering asks for no figures."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other; what is not known is left out."""
        yield from self._training()
        yield from self._members()
        yield from self._costs()

    def _training(self) -> Iterator[Metric]:
        figures, now = self._figures, self._figures.now
        if now is not None:
            yield _gauge("step", "Steps committed", now.step)
            yield _gauge("steps_in_all", "Steps that there will be", now.steps_in_all)
            yield _gauge("loss", "Mean loss of the workers in the last step", now.loss)
            yield _gauge("generation", "Changes of the membership", now.generation)
            kept = now.checkpoint
            saved = None if kept is None else kept.step
            yield _gauge("checkpoint_step", "Of the last checkpoint", saved)
        yield _counter("samples", "Samples used by all workers", figures.samples)
        yield _counter(
            "samples_again",
            "Of these, samples of steps taken again, from a checkpoint after all workers were lost",
            figures.samples_again,
        )
        yield _counter(
            "gradients_again", "Gradients computed that did not count", figures.recomputed
        )
        spent = CounterMetricFamily(
            "spotmpi_worker_seconds", "Time of all workers in training", labels=["spent"]
        )
        for name, seconds in figures.spent._asdict().items():
            spent.add_metric([name], seconds)
        yield spent

    def _members(self) -> Iterator[Metric]:
        figures, now = self._figures, self._figures.now
        if now is not None:
            workers = GaugeMetricFamily(
                "spotmpi_workers", "Workers by their states", labels=["state"]
            )
            states = Counter(one.state for one in now.workers)
            for state in sorted({"training", *states}):
                workers.add_metric([state], states[state])
            yield workers
        recoveries = CounterMetricFamily(
            "spotmpi_recoveries",
            "Recoveries by what was the matter with those lost",
            labels=["cause"],
        )
        for cause in CAUSES:
            recoveries.add_metric([cause], figures.recoveries[cause])
        yield recoveries
        yield _counter(
            "recovery_seconds", "From deaths until the others went on", figures.recovering
        )
        yield _counter("joined", "Workers that joined under way", figures.joined)
        yield _counter("left", "Workers that left on request", figures.departed)
        yield _counter("notices", "Hosts that were to be taken away", figures.notices)
        yield _counter(
            "notice_given_seconds", "From notices until hosts were to go", figures.notice_given
        )
        yield _counter(
            "notice_used_seconds", "Of these, until their last worker had left", figures.notice_used
        )

    def _costs(self) -> Iterator[Metric]:
        figures = self._figures
        yield _gauge(
            "goodput",
            "Share of the workers' time in which they computed what counts",
            figures.goodput,
        )
        yield _counter("present_seconds", "Time of all workers", figures.worker_seconds)
        if figures.dollars_an_hour is not None:
            yield _counter("dollars", "What the hosts have cost", figures.dollars)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(f"spotmpi_{name}", text)
    if value is not None:
        family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"spotmpi_{name}", text, value=value)
