"""An agent that comes, and then does nothing until its head is gone or lets it go.

usage: agent.py NAME SLOTS, a trunk at standard input and output, as `spotmpi agent --pipe` has it
"""

import os
import secrets
import selectors
import sys

from spotmpi import __version__
from spotmpi.launch.seal import Role, Seal
from spotmpi.launch.trunk import Trunk, message

name, slots = sys.argv[1], int(sys.argv[2])
line = b""
while not line.endswith(b"\n"):
    line += os.read(0, 1)
select = selectors.PollSelector()
seal = Seal(Role.AGENT, bytes.fromhex(line.decode()), secrets.token_bytes(32))
trunk = Trunk(select, (0, 1), seal, lambda frame: take(message(frame)["event"]), sys.exit)


def take(event: str) -> None:
    if event == "welcome":
        trunk.tell("ready")
    elif event == "leave":
        sys.exit()


introduced = False
while True:
    for key, _ in select.select():
        key.data()
    if trunk.open and not introduced:
        introduced = True
        trunk.tell("hello", name=name, slots=slots, version=__version__, problem=None)
