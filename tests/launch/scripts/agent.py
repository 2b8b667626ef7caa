"""An agent that comes, and then does nothing until its head is gone or lets it go.

usage: agent.py NAME SLOTS, a trunk at standard input and output, as `spotmpi agent --pipe` has it
"""

import os
import secrets
import sys

from spotmpi import __version__
from spotmpi.launch import messages
from spotmpi.launch.auth import Role, Seal
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.link import HostLink, read

name, slots = sys.argv[1], int(sys.argv[2])
line = b""
while not line.endswith(b"\n"):
    line += os.read(0, 1)
loop = Loop()
seal = Seal(Role.AGENT, bytes.fromhex(line.decode()), secrets.token_bytes(32))
trunk = HostLink(loop, (0, 1), seal, lambda frame: take(read(frame, messages.FROM_HEAD)), sys.exit)


def take(said: object) -> None:
    if isinstance(said, messages.Assignment):
        trunk.tell(messages.Fit())
    elif isinstance(said, messages.Leave):
        sys.exit()


introduced = False
while True:
    loop.turn()
    if trunk.open and not introduced:
        introduced = True
        trunk.tell(messages.Hello(__version__))
        trunk.tell(messages.Offer(name, slots, None))
