"""Options of ``spotmpi run`` for other programs that want to know how the job stands."""

from __future__ import annotations

import argparse
import math
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.launch.commands.agent import parse_address
from spotmpi.launch.head.agent_listener import bind
from spotmpi.launch.head.launching import Published
from spotmpi.launch.showing.figures import Figures

__all__ = ["add_arguments", "opened"]

_HERE = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe them."""
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help=f"answer Prometheus there while the job runs ({_HERE} unless HOST is given; needs the "
        "extra `metrics`)",
    )
    parser.add_argument(
        "--price", metavar="USD", help="what one host costs in an hour, for --metrics"
    )
    parser.add_argument(
        "--tensorboard", metavar="DIR", help="write an event file for TensorBoard into DIR"
    )


def opened(options: argparse.Namespace, tensorboard: Path | None, until: ExitStack) -> Published:
    """What they ask for; what is opened is closed with ``until``. Raises UsageError.

    ``tensorboard`` is the folder, which takes files.
    """
    figures = Figures(None if options.price is None else _price(options.price))
    if options.metrics is None:
        if options.price is not None:
            raise UsageError("--price is for --metrics: give that too")
        return Published(figures, tensorboard=tensorboard)
    if find_spec("prometheus_client") is None:
        raise UsageError(
            "--metrics needs prometheus-client: python -m pip install 'spotmpi[metrics]'"
        )
    bare = options.metrics.isascii() and options.metrics.isdigit()
    host, port = parse_address(f"{_HERE}:" * bare + options.metrics, "--metrics")
    try:
        listener = until.enter_context(bind(host, port))
    except OSError as error:
        raise UsageError(
            f"--metrics {options.metrics}: {error.strerror}; choose another address or port"
        ) from error
    return Published(figures, listener, tensorboard)


def _price(text: str) -> float:
    try:
        dollars = float(text)
    except ValueError:
        dollars = math.nan
    if not 0 <= dollars < 1e6:
        raise UsageError(f"--price {text}: give what one host costs in an hour, as in 0.526")
    return dollars
