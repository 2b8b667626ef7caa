"""What a worker and its neighbours (workers of its host) know of each other.

Each worker has a header, which its neighbours read (`SharedHeader`), and a card, which says where
that is. Cards go by MPI, once when somebody comes. A neighbour's death is seen at once
(`process_watch`). A worker shows its published model to its neighbours, and they add up sums
without locks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.common_sums import AddUp, CommonSums
from spotmpi.fabric.neighbours.process_watch import ProcessWatch
from spotmpi.fabric.neighbours.published_model import ModelForm, PublishedModel
from spotmpi.fabric.neighbours.shared_header import Entry, SharedHeader, key_of
from spotmpi.fabric.neighbours.shared_memory import Found
from spotmpi.protocol.membership import WorkerId

__all__ = ["CARD_BYTES", "Neighbours", "on_several_hosts"]

_LOG = logging.getLogger(__name__)

_CARD = struct.Struct("<qqqqq")
"""A worker's process, the descriptor and mark of its header, its host, and how often it was
bound."""

CARD_BYTES = _CARD.size


def on_several_hosts(cards: Iterable[bytes]) -> bool:
    """Return True if the workers with these cards are on several hosts: alike for all that have the
    same cards."""
    return len({_CARD.unpack_from(card)[-2] for card in cards}) > 1


class Neighbours:
    """One worker's view of its neighbours, and what it shows them."""

    def __init__(self, own: SharedHeader | None, lines: bool) -> None:
        """``own``: this worker's header; None: it shares nothing. ``lines``: messages can go to
        workers of other hosts."""
        self.own = own
        self._lines = lines
        self.host = _host()
        """The number that tells this worker's host from others."""
        self._hosts: dict[WorkerId, int] = {}
        """These numbers of all workers ever met."""
        self._headers: dict[WorkerId, SharedHeader] = {}
        """The headers that this worker can reach, its own too."""
        self._watched = ProcessWatch()
        self.present: list[SharedHeader] = []
        """The headers of this host's members; empty unless all members reach their neighbours."""
        self.bindings = 0
        """How often members were bound: as large as theirs, when all are bound together."""
        self._shown: tuple[Entry, PublishedModel] | None = None
        """The entry of this published model in this worker's header, and the model."""
        self._published: dict[WorkerId, tuple[Found, PublishedModel]] = {}
        """The neighbours' published models that this worker has looked for."""
        self._sums = None if own is None else CommonSums(own)

    # Who is there.

    def card(self) -> bytes:
        """Return what others must know to reach this worker's header, in `CARD_BYTES`."""
        found = Found(0, 0, 0) if self.own is None else self.own.found
        return _CARD.pack(*found, self.host, self.bindings)

    def reach(self, cards: Mapping[WorkerId, bytes]) -> bool:
        """Return True if this worker can reach the memory of all these that are on its host, and
        has lines to all others. Local."""
        read = {worker: _CARD.unpack_from(card) for worker, card in cards.items()}
        self.bindings = max(self.bindings, *(bindings for *_, bindings in read.values()))
        for worker, (*numbers, host, _) in read.items():
            found = Found(*numbers)
            self._hosts[worker] = host
            if host != self.host:
                if not self._lines:
                    return False
                continue
            known = self._headers.get(worker)
            if known is not None and known.found == found:
                continue
            try:
                if self.own is not None and self.own.found == found:
                    self._headers[worker] = self.own
                else:  # watched first, so what is found then is this process's
                    self._watched.follow(worker, found.process)
                    self._headers[worker] = SharedHeader.of(found)
            except (OSError, SpotmpiError) as error:
                # The worker may run where processes have other numbers: here another one may have
                # its number.
                self._watched.forget([worker])
                _LOG.info("the memory of worker %d cannot be reached: %s", worker, error)
                return False
        return True

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Know only these from now on. ``together``: all of them reach each other."""
        self.bindings += 1
        self._headers = {one: header for one, header in self._headers.items() if one in members}
        self._published = {
            one: published for one, published in self._published.items() if one in members
        }
        self._watched.keep(members)
        self.present = []
        if together:
            self.present = [self._headers[one] for one in members if one in self._headers]

    @property
    def apart(self) -> bool:
        """True if this worker has met others, and they do not share memory."""
        return bool(self._headers) and not self.present

    def by_host(self, workers: Sequence[WorkerId]) -> list[list[WorkerId]]:
        """Return these workers, host by host."""
        hosts: dict[int, list[WorkerId]] = {}
        for one in workers:
            hosts.setdefault(self._hosts[one], []).append(one)
        return list(hosts.values())

    @property
    def me(self) -> WorkerId:
        """This worker, which was reached by its own card."""
        return next(one for one, header in self._headers.items() if header is self.own)

    @property
    def place(self) -> int:
        """This worker's index in `present`."""
        assert self.own is not None
        return self.present.index(self.own)

    def is_near(self, worker: WorkerId) -> bool:
        """Return True if this worker shares memory with that one: the two can read each other's
        published models. Local; both find the same."""
        return self._headers.get(worker) in self.present

    def dead(self) -> Collection[WorkerId]:
        """Return the neighbours that are dead for certain. Local."""
        return self._watched.dead

    # Published models.

    def show(self, published: PublishedModel | None) -> None:
        """Show this worker's model in its header; None: show none. Local."""
        if self.own is None:
            return
        if self._shown is not None:
            self._shown[0].clear()
            self._shown = None
        if published is not None:
            key = key_of("a published model", published.form.arrays)
            self._shown = self.own.enter(key, published.segment), published

    def model_of(self, worker: WorkerId, form: ModelForm) -> PublishedModel | None:
        """Return the model that a near worker's header shows now; None if it shows none of this
        form, or is dead. Local."""
        if not self.is_near(worker) or worker in self.dead():
            return None
        entry = self._headers[worker].entry(key_of("a published model", form.arrays))
        if entry is None:
            self._published.pop(worker, None)
            return None
        found = entry.segment()
        known = self._published.get(worker)
        if known is None or known[0] != found:
            try:
                known = self._published[worker] = found, PublishedModel.of(found, form)
            except OSError:  # it is gone, or its entry is being changed
                return None
        return known[1]

    # Sums without locks.

    def add_up(self, asked: AddUp) -> int:
        """Do an `AddUp` with the workers whose memory is shared."""
        near = sum(self.is_near(worker) for worker in asked.among)
        if near < 2 or self._sums is None:
            return 1
        self._sums.add(asked.part, asked.total, asked.round, self.present)
        return near

    def move_on(self) -> None:
        """Forget what was added up: the members are in another training from now on."""
        if self._sums is not None:
            self._sums.leave()


def _host() -> int:
    """Return the number that tells this host from others. A network namespace counts as a host of
    its own: a worker whose line is cut must not go on by shared memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    network = os.stat("/proc/self/ns/net").st_ino
    digest = hashlib.blake2b(boot + network.to_bytes(8, "little"), digest_size=7).digest()
    return int.from_bytes(digest, "little")
