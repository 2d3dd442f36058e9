"""Clients that pipeline transactions without waiting for one another, and what a store may hold of these afterwards.

Each client sends units: commands that belong together, and of which a server does all or nothing.  The units go out
many at a time, so that a server that ends has some that it has read and not run.

    COMMITTED   WATCH w | MULTI | XADD k * n i | XGROUP CREATE k i $ | EXEC
    DOOMED      WATCH w | XADD w * f v | MULTI | XADD k * n i | XGROUP CREATE k i $ | EXEC         the watch is broken
    ELSEWHERE   SELECT 1 | XADD e * n i | SELECT 0                                 never in the first database
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.faults.client_threads import CountingThread
from tests.support.faults.ledger import EntryID, read_id
from tests.support.faults.producers import entries_of
from tests.support.raw import RawClient, Word, encode, parse
from tests.support.servers import Server

MAX_UNITS = 3_000  # of one client: what is written must be read back in a moment
_OTHER_DATABASE = 1


class Kind(enum.Enum):
    COMMITTED = enum.auto()
    DOOMED = enum.auto()
    ELSEWHERE = enum.auto()


@dataclass(slots=True)
class Unit:
    """`entry_id` is what the client was told, None while it was told nothing."""

    kind: Kind
    number: int
    entry_id: EntryID | None = None


class Transactor(CountingThread):
    """`depth` units under way at a time."""

    def __init__(self, server: Server, name: str, seed: int, depth: int) -> None:
        super().__init__(server)
        self.key, self.watched, self.elsewhere = f"{name}:k", f"{name}:w", f"{name}:e"
        self.units: list[Unit] = []
        self._random = random.Random(seed)
        self._depth = depth

    def work(self, client: RawClient) -> None:
        while len(self.units) < MAX_UNITS:
            self._send(client)

    def _send(self, client: RawClient) -> None:
        kinds = self._random.choices(tuple(Kind), weights=(4, 2, 1), k=self._depth)
        batch = [Unit(kind, len(self.units) + n) for n, kind in enumerate(kinds)]
        self.units += batch
        commands = [self._commands(unit) for unit in batch]
        client.send_bytes(b"".join(encode(words) for one in commands for words in one))
        for unit, words in zip(batch, commands, strict=True):
            self._settle(unit, [client.reply() for _ in words])

    def _commands(self, unit: Unit) -> list[tuple[Word, ...]]:
        if unit.kind is Kind.ELSEWHERE:
            add = ("XADD", self.elsewhere, "*", "n", unit.number)
            return [("SELECT", _OTHER_DATABASE), add, ("SELECT", 0)]
        words: list[tuple[Word, ...]] = [("WATCH", self.watched)]
        if unit.kind is Kind.DOOMED:
            words.append(("XADD", self.watched, "MAXLEN", 1, "*", "f", "v"))
        words.append(("MULTI",))
        words.append(("XADD", self.key, "*", "n", unit.number))
        words.append(("XGROUP", "CREATE", self.key, unit.number, "$"))
        return [*words, ("EXEC",)]

    def _settle(self, unit: Unit, replies: Sequence[bytes]) -> None:
        for reply in replies:
            assert not reply.startswith(b"-"), (unit, reply)
        match unit.kind:
            case Kind.DOOMED:
                assert replies[-1] == b"*-1\r\n", (unit, replies)
            case Kind.ELSEWHERE:
                unit.entry_id = read_id(parse(replies[1]).text)
            case Kind.COMMITTED:
                results = parse(replies[-1]).children
                assert results is not None and len(results) == 2, (unit, replies)
                unit.entry_id = read_id(results[0].text)
        self.acknowledged += unit.kind is not Kind.DOOMED

    def unanswered(self) -> int:
        return sum(unit.entry_id is None and unit.kind is not Kind.DOOMED for unit in self.units)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def complaints(self, client: RawClient) -> Iterator[str]:
        """Every unit of which a server has done a part, done what it must not, or lost what it has acknowledged."""
        there = _entries(client, self.key)
        groups = _groups(client, self.key)
        assert client.ask("EXISTS", self.elsewhere) == b":0\r\n", f"{self.elsewhere} is in the wrong database"
        assert client.ask("SELECT", _OTHER_DATABASE) == b"+OK\r\n"
        elsewhere = _entries(client, self.elsewhere)
        assert client.ask("SELECT", 0) == b"+OK\r\n"
        for unit in self.units:
            found = elsewhere if unit.kind is Kind.ELSEWHERE else there
            ids = found.pop(unit.number, [])
            if unit.kind is not Kind.ELSEWHERE and bool(ids) != (unit.number in groups):
                yield f"{self.key}: half of {unit} is there: {ids}, group {unit.number in groups}"
            if unit.kind is Kind.DOOMED and ids:
                yield f"{self.key}: {unit} was executed although its watch was broken"
            if len(ids) > 1:
                yield f"{self.key}: {unit} is there more than once: {ids}"
            if unit.entry_id is not None and unit.entry_id not in ids:
                yield f"{self.key}: {unit} was acknowledged, and is lost"
        if there or elsewhere:
            yield f"{self.key}: never sent: {there} {elsewhere}"


def _entries(client: RawClient, key: str) -> dict[int, list[EntryID]]:
    """The numbers of the units whose entries are there, and under which IDs."""
    found: dict[int, list[EntryID]] = {}
    for entry_id, payload in entries_of(client.tree("XRANGE", key, "-", "+")):
        found.setdefault(int(payload), []).append(entry_id)
    return found


def _groups(client: RawClient, key: str) -> set[int]:
    found = client.tree("XINFO", "GROUPS", key)
    return {int({name.text: value.text for name, value in group.pairs()}[b"name"]) for group in found.children or ()}


def start(server: Server, count: int, depth: int, seed: int, prefix: str) -> list[Transactor]:
    """`count` of them at work."""
    workers = [Transactor(server, f"{prefix}:{n}", seed * 100 + n, depth) for n in range(count)]
    for worker in workers:
        worker.start()
    return workers
