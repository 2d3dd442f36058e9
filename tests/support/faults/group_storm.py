"""Threads that storm a server with group commands, and notes from which its state after a crash can be judged.

Each `Stormer` has a stream of its own, so the order in which its commands ran is the order in which it sent them.  With
every batch it asks what the stream looks like then: the last such look that was answered is what must be there after a
crash, to the millisecond, unless a later batch was under way.  Of that batch the oracle says what it may have made.

`Worker`s of one group share a stream and take entries from each other; they note what they were told of each entry.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.faults.client_threads import ClientThread
from tests.support.in_process import answer, value_of
from tests.support.oracle.oracle import Oracle
from tests.support.oracle.replies import flat, without_tree
from tests.support.raw import RawClient, encode, parse
from tests.support.scripts.generators import Command, Generator, StreamCommands
from tests.support.scripts.group_commands import GroupCommands, NewerCommands
from tests.support.servers import Server

NODE_MAX_ENTRIES: Final = 4
NODES: Final[dict[str, object]] = {"stream-node-max-entries": NODE_MAX_ENTRIES, "stream-node-max-bytes": 0}
GROUPS: Final = (b"g", b"h")
TIMES: Final = frozenset((b"seen-time", b"active-time"))


class Words(NewerCommands, Generator):
    """Commands on one stream whose effect does not depend on the clock.

    So no `*`, and no reads with CLAIM, which begin with what has waited longest.
    """

    def __init__(self, seed: int, key: bytes, families: Sequence[Any]) -> None:
        super().__init__(random.Random(seed), families, wrong=0.02)
        self._key = key

    def key(self) -> bytes:
        return self._key

    def group(self) -> bytes:
        return GROUPS[0] if self.chance(0.75) else GROUPS[1]

    def read_options(self) -> list[list[bytes]]:
        return GroupCommands.read_options(self)

    def delete(self) -> Command:
        return [b"DEL", self.key()]

    def policy(self) -> Command:
        """Often so strict that what is read or claimed again becomes a dead letter; consumers live for ever."""
        words = [b"XGROUP", b"POLICY", self.key(), self.group()]
        if self.chance(0.2):
            return [*words, b"MAXDELIVERIES", b"OFF"]
        words += [b"MAXDELIVERIES", self.number(1, 3), b"DEADLETTER", dead_letters_of(self.key())]
        return [*words, b"CONSUMERTTL", b"1000000000"] if self.chance(0.3) else words

    def batch(self) -> list[Command]:
        commands: list[Command] = []
        count = self.random.choice((1, 1, 2, 5, 20))
        while len(commands) < count:
            words = self.command()
            if self.chance(self.wrong):
                words = self.spoil(words)
            if b"*" not in words and words[1:2] != [b"HELP"] and b"CLAIM" not in [word.upper() for word in words[1:]]:
                commands.append(words)
        return commands


STOCK: Final = [
    [
        (60, StreamCommands.xadd),
        (6, StreamCommands.xdel),
        (4, StreamCommands.xtrim),
        (2, StreamCommands.xsetid),
        (1, Words.delete),
    ],
    [
        (10, GroupCommands.xgroup_create),
        (2, GroupCommands.xgroup_setid),
        (2, GroupCommands.xgroup_destroy),
        (2, GroupCommands.xgroup_createconsumer),
        (3, GroupCommands.xgroup_delconsumer),
        (30, GroupCommands.xreadgroup),
        (12, GroupCommands.xack),
        (14, GroupCommands.xclaim),
        (8, GroupCommands.xautoclaim),
    ],
]
# The effects of these are stock commands in the log.
REFERENCES: Final = [[(5, NewerCommands.xdelex), (5, NewerCommands.xackdel)]]
# A trim by ACKED leaves holes; Redis, which is told of them as deletions, shows another max-deleted-entry-id.
TRIMS: Final = [[(4, NewerCommands.xtrim_references), (4, NewerCommands.xadd_references)]]
RELEASE: Final = [[(8, NewerCommands.xnack)]]
POLICY: Final = [[(6, Words.policy)]]


@dataclass(frozen=True)
class Look:
    """What a server shows of one stream: XINFO STREAM FULL, its dead letters, and of its groups XPENDING and policy."""

    full: Any
    dead: Any
    groups: tuple[Any, ...]

    def untimed(self) -> tuple[Any, Any]:
        """Without moments; dead letters have theirs in their IDs."""
        return untimed(self.full), [fields for _, fields in self.dead]


def dead_letters_of(key: bytes) -> bytes:
    return key + b":dead"


def questions(key: bytes) -> list[Command]:
    of_groups = [words for group in GROUPS for words in ([b"XPENDING", key, group], [b"XGROUP", b"POLICY", key, group])]
    return [
        [b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"],
        [b"XRANGE", dead_letters_of(key), b"-", b"+"],
        *of_groups,
    ]


def look_of(replies: Sequence[bytes]) -> Look:
    full, dead, *groups = (value_of(parse(reply)) for reply in replies)
    return Look(without_tree(full), dead, tuple(groups))


def look_at(server: Server, key: bytes) -> Look:
    with server.client() as client:
        return look_of(client.pipeline(questions(key)))


def untimed(full: Any) -> Any:
    """XINFO STREAM FULL without moments; that there was one stays."""
    if not isinstance(full, list):
        return full
    if len(full) % 2 or not full or full[0] not in (b"length", b"name"):
        return [untimed(item) for item in full]
    pairs: list[Any] = []
    for name, value in zip(full[::2], full[1::2], strict=True):
        if name in TIMES:
            value = value is not None and value != -1
        elif name == b"pending" and isinstance(value, list):
            value = [[*row[:-2], row[-1]] for row in value]
        pairs += [name, untimed(value)]
    return pairs


def moments(full: Any) -> dict[tuple[bytes, ...], int]:
    """When each consumer of each group was seen and active, and when each entry was delivered."""
    found = {}
    for group in field_of(full, b"groups") or ():
        name = field_of(group, b"name")
        for consumer in field_of(group, b"consumers"):
            for moment in TIMES:
                if (at := field_of(consumer, moment)) is not None:
                    found[name, field_of(consumer, b"name"), moment] = at
        for row in field_of(group, b"pending"):
            found[name, row[0]] = row[-2]
    return found


def field_of(pairs: Any, name: bytes) -> Any:
    """A value of a map that came as a flat array; None of what is none, an error line for example."""
    return dict(zip(pairs[::2], pairs[1::2], strict=True))[name] if isinstance(pairs, list) else None


class Stormer(ClientThread):
    """Sends batches and looks until the connection ends; then says whether what is there may be there."""

    def __init__(
        self, server: Server, seed: int, key: bytes, families: Sequence[Any], *, longest_pause_s: float
    ) -> None:
        super().__init__(server)
        self.key = key
        self.looks = 0
        self._words = Words(seed, key, families)
        self._random = random.Random(seed)
        self._longest_pause_s = longest_pause_s
        self._done: list[Command] = []  # up to the last look
        self._look: Look | None = None
        self._under_way: list[Command] = []
        self._under_way_since_ms = 0
        self._answered = 0  # of those under way

    def work(self, client: RawClient) -> None:
        while True:
            self.ask(client, self._words.batch())
            time.sleep(self._random.uniform(0, self._longest_pause_s))

    def ask(self, client: RawClient, batch: list[Command]) -> None:
        """Send a batch and look; note it as under way until the look is answered."""
        asked = questions(self.key)
        self.note_as_under_way(batch)
        client.send_bytes(b"".join(map(encode, [*batch, *asked])))
        for _ in batch:
            client.reply()
            self._answered += 1
        look = look_of([client.reply() for _ in asked])
        self._done += batch
        self._look = look
        self._under_way = []
        self._answered = 0
        self.looks += 1

    def note_as_under_way(self, batch: list[Command]) -> None:
        self._answered = 0
        self._under_way = batch
        self._under_way_since_ms = int(time.time() * 1000)

    def complaints(self, found: Look) -> list[str]:
        """What is wrong with the state found after the crash."""
        if self._answered == 0 and (found == self._look or (self._look is None and not self._under_way)):
            return []
        told = f"{self.key!r}: after {len(self._done)} commands, {self._answered} of {len(self._under_way)} answered"
        if not self._under_way:
            return [f"{told}: not what was shown\n{self._look}\n{found}"]
        oracle = Oracle(node_max_entries=NODE_MAX_ENTRIES)
        now_ms = int(time.time() * 1000)
        for words in [*self._done, *self._under_way[: self._answered]]:
            answer(lambda words=words: oracle.execute(words, now_ms))
        possible = []
        for words in [*self._under_way[self._answered :], None]:
            full, dead = (
                answer(lambda asked=asked: flat(oracle.execute(asked, now_ms))) for asked in questions(self.key)[:2]
            )
            possible.append(Look(without_tree(full), dead, ()).untimed())
            if words is not None:
                answer(lambda words=words: oracle.execute(words, now_ms))
        if found.untimed() in possible:
            return self._wrong_moments(found)
        return [f"{told}: not what any of the commands under way made\n{possible}\n{found.untimed()}"]

    def _wrong_moments(self, found: Look) -> list[str]:
        """What is under way may have set a moment to now.

        Of when something was delivered, XCLAIM may have made any moment, and XNACK 0.
        """
        before = {} if self._look is None else moments(self._look.full)
        names = {words[0] for words in self._under_way}
        return [
            f"{self.key!r}: {place} is {at}, was {before.get(place)} before {self._under_way_since_ms}"
            for place, at in moments(found.full).items()
            if at != before.get(place)
            and -1 != at < self._under_way_since_ms
            and not (b"XCLAIM" in names and place[-1] not in TIMES)
            and not (b"XNACK" in names and place[-1] not in TIMES and at == 0)
        ]


# -- one stream, many consumers ----------------------------------------------------------------------------------------

SHARED_GROUP: Final = "workers"


@dataclass
class Notes:
    """What one consumer was told of the entries of the shared stream, and what it asked for without an answer."""

    name: str
    given: set[bytes] = field(default_factory=set)  # it was sent them, by reading or by claiming
    acknowledged: set[bytes] = field(default_factory=set)  # it was told so
    perhaps_acknowledged: set[bytes] = field(default_factory=set)
    added: set[bytes] = field(default_factory=set)


class Worker(ClientThread):
    """A consumer that adds entries, reads, acknowledges and claims from others, one request at a time."""

    def __init__(self, server: Server, seed: int, key: str, name: str) -> None:
        super().__init__(server)
        self.notes = Notes(name)
        self._key = key
        self._random = random.Random(seed)

    def work(self, client: RawClient) -> None:
        while True:
            self._take_a_step(client)

    def _take_a_step(self, client: RawClient) -> None:
        notes, key = self.notes, self._key
        held = sorted(notes.given - notes.perhaps_acknowledged)
        match self._random.randrange(6):
            case 0 | 1:
                added = parse(client.ask("XADD", key, "*", "f", "v"))
                if added.kind == "$":
                    notes.added.add(added.text)
            case 2:
                start = ("XREADGROUP", "GROUP", SHARED_GROUP, notes.name, "COUNT", self._random.randint(1, 3))
                reply = parse(client.ask(*start, "BLOCK", 5, "STREAMS", key, ">"))
                for stream in reply.children or ():
                    notes.given |= _ids(stream.children[1] if stream.children else None)
            case 3:
                words = ("XAUTOCLAIM", key, SHARED_GROUP, notes.name, 0, 0, "COUNT", self._random.randint(1, 4))
                reply = parse(client.ask(*words))
                notes.given |= _ids(reply.children[1] if reply.children else None)
            case _ if held:
                chosen = self._random.choice(held)
                notes.perhaps_acknowledged.add(chosen)
                reply = parse(client.ask("XACK", key, SHARED_GROUP, chosen))
                if reply.kind == ":":
                    notes.acknowledged.add(chosen)
                else:  # what is refused changes nothing
                    notes.perhaps_acknowledged.discard(chosen)


def _ids(entries: Any) -> set[bytes]:
    return {entry.children[0].text for entry in (entries.children if entries else None) or () if entry.children}


def complaints_of_workers(server: Server, key: str, all_notes: Sequence[Notes]) -> list[str]:
    """What of the acknowledged is not so, in the state of a server that was killed and started again."""
    names = {notes.name.encode() for notes in all_notes}
    with server.client() as client:
        rows = client.tree("XPENDING", key, SHARED_GROUP, "-", "+", 1 << 30).children or ()
        pending = {row.children[0].text: row.children for row in rows if row.children}
        there = _ids(client.tree("XRANGE", key, "-", "+"))
        (group,) = client.tree("XINFO", "GROUPS", key).children or ()
        last_id = _parts({name.text: value.text for name, value in group.pairs()}[b"last-delivered-id"])
    acknowledged = {entry_id for notes in all_notes for entry_id in notes.acknowledged}
    perhaps = {entry_id for notes in all_notes for entry_id in notes.perhaps_acknowledged}
    given = {entry_id for notes in all_notes for entry_id in notes.given}
    complaints = [f"{entry_id!r} was acknowledged and is pending" for entry_id in acknowledged & pending.keys()]
    complaints += [f"{entry_id!r} was delivered and is not pending" for entry_id in given - perhaps - pending.keys()]
    complaints += [f"{entry_id!r} was delivered, and may be again" for entry_id in given if _parts(entry_id) > last_id]
    complaints += [
        f"{entry_id!r} was added and is not there" for notes in all_notes for entry_id in notes.added - there
    ]
    delivered = {entry_id for entry_id in there if _parts(entry_id) <= last_id}
    complaints += [
        f"{entry_id!r} is behind the group and was not acknowledged, and is not pending"
        for entry_id in delivered - perhaps - pending.keys()
    ]
    for entry_id, row in pending.items():
        if row[1].text not in names or int(row[3].text) < 1 or entry_id not in there:
            complaints.append(f"{entry_id!r} is pending in a way it never was: {row}")
    return complaints


def _parts(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq)
