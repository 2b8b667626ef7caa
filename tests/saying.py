"""Messages as a test writes them down: an event and its fields."""

from __future__ import annotations

import json
from typing import Any

from spotmpi.launch import messages
from spotmpi.launch.decoding import Message, decode

_ALL = {**messages.FROM_WORKER, messages.Vanished.event: messages.Vanished}


def said(event: str, **fields: Any) -> Message:
    """What a worker or its wrapper says, as it is heard."""
    return decode(json.dumps({"event": event, **fields}).encode(), _ALL)
