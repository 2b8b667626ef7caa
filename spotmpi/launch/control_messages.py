"""What the user's commands ask of a launcher, and its answers (`control_socket`), typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from spotmpi.launch.decoding import Message, Most, Page, Printable, Shown, Within, table
from spotmpi.launch.messages import MOST_NAME, Count, Slots, Worker

# Of the commands, where ``event`` is called ``ask``.


@dataclass(frozen=True)
class AskStatus(Message, event="status"):
    """How does the job stand?"""


@dataclass(frozen=True)
class AskStop(Message, event="stop"):
    """Have all workers stop, with a checkpoint; or end the job without one, ``now``."""

    now: bool = False


@dataclass(frozen=True)
class AskShrink(Message, event="shrink"):
    """Have one worker leave."""

    worker: int


@dataclass(frozen=True)
class AskGrow(Message, event="grow"):
    """Have one more host, as a line of a hosts file."""

    line: str


@dataclass(frozen=True)
class AskHost(Message, event="host"):
    """Has a host come that was asked for? Answered with nothing while it may still come."""

    host: Annotated[str, Printable(MOST_NAME)]


@dataclass(frozen=True)
class AskMore(Message, event="more"):
    """Have more workers on a host that is there: the one of this name, or the only one."""

    workers: Slots
    host: Annotated[str, Printable(MOST_NAME)] | None = None


@dataclass(frozen=True)
class AskEnd(Message, event="end"):
    """How did the job end? Answered by a `Report` when it has."""


QUESTIONS = table(AskStatus, AskStop, AskShrink, AskGrow, AskHost, AskMore, AskEnd)


# Of the launcher. Fields of `Report` are what `spotmpi status --json` prints.

Text = Annotated[str, Shown(4096)]


@dataclass(frozen=True)
class SavedAt:
    """The newest checkpoint."""

    step: Count
    path: Text


@dataclass(frozen=True)
class WorkerReport:
    """One worker. Times as ISO 8601 has them."""

    worker: Worker
    host: Text
    state: Text
    how: Annotated[str, Page()] | None
    """It was revoked, or turned away."""
    when: Text | None
    """It came to its end."""
    step: Count | None
    doing: Literal["messages", "round", "script"] | None
    doing_seconds: float | None
    awaited_seconds: float | None
    """Others have waited for it."""
    quiet_seconds: float | None = None
    """In its script it has done nothing for so long, as far as its host can see."""
    busy: Text | None = None
    """With this, as its script says."""
    pid: Count | None = None
    """Of its process, on its host, while it lives."""
    computing_seconds: float | None = None
    """In its script, since its training began ..."""
    waiting_seconds: float | None = None
    """... and for others in rounds ..."""
    stalled_seconds: float | None = None
    """... of these, while the membership changed."""


@dataclass(frozen=True)
class HostReport:
    """One host that is not the head's own."""

    host: Text
    longest_silence_ms: float
    recent_silence_ms: float | None
    allowed_silence_ms: float


@dataclass(frozen=True)
class EndReport:
    """How the job ended."""

    code: Annotated[int, Within(0, 255)]
    meaning: Text
    sentence: Annotated[str, Page()]


@dataclass(frozen=True)
class Report(Message, event="report"):
    """How the job stands."""

    job: Text
    script: str
    arguments: Annotated[tuple[str, ...], Most(1 << 20)]
    host: Text
    launcher: Count
    since: Text
    seconds: float
    generation: Count
    step: Count | None
    checkpoint: SavedAt | None
    unsaved: Text | None
    """Why no checkpoint could be written since."""
    stopping: bool
    workers: Annotated[tuple[WorkerReport, ...], Most(1 << 20)]
    hosts: Annotated[tuple[HostReport, ...], Most(1 << 20)]
    ending: EndReport | None
    loss: float | None = None
    """The workers' mean in the last step."""
    strategy: Text | None = None
    """That is followed ..."""
    why: Text | None = None
    """... and why, if it was chosen under way."""
    samples: Count | None = None
    """That all workers have used, where steps are of batches."""
    steps_in_all: Count | None = None
    """With those to come, as far as the script's batches say."""
    steps_per_second: float | None = None
    """In the last seconds."""
    samples_per_second: float | None = None
    """The same, of all workers, where steps are of batches."""
    seconds_to_go: float | None = None
    """At this pace."""
    trace: Text | None = None
    """The file that the trace of its present training goes to."""


@dataclass(frozen=True)
class Said(Message, event="said"):
    """What comes of what was asked."""

    said: Annotated[str, Page()]


@dataclass(frozen=True)
class Wrong(Message, event="wrong"):
    """Why nothing comes of it."""

    wrong: Annotated[str, Page()]


ANSWERS = table(Report, Said, Wrong)
