"""A service of which each answer was written down before."""

from __future__ import annotations

from spotmpi.errors import NoAnswer
from spotmpi.notice.metadata import Answer, MetadataRequest


class Scripted:
    """Answers questions in the order of the script; ``None`` is no answer. Keeps the questions."""

    def __init__(self, *answers: Answer | None) -> None:
        self.answers = list(answers)
        self.questions: list[MetadataRequest] = []

    def __call__(self, question: MetadataRequest) -> Answer:
        """The next answer."""
        self.questions.append(question)
        answer = self.answers.pop(0)
        if answer is None:
            raise NoAnswer("nothing is written down here")
        return answer

    @property
    def asked(self) -> list[str]:
        """Methods and paths, without their queries."""
        return [f"{q.method} {q.path.partition('?')[0]}" for q in self.questions]
