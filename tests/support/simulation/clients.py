"""What the clients of a simulation do, each in a loop of its own, until the world says that it is enough.

Each kind writes down what it asks for before it asks, and what it was told.  An answer that does not come leaves an
unknown outcome; the client connects again and goes on with something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.faults.ledger import Account, Add, Delete, EntryID, Fate, Sight, TrimBelow, read_id
from tests.support.raw import Word
from tests.support.simulation.client import Client, ErrorReply, Lost
from tests.support.simulation.history import History
from tests.support.simulation.loop import Loop
from tests.support.simulation.machine import Stamp
from tests.support.simulation.records import Ack, Count, Delivery, Records, Wait

STREAMS = (b"s0", b"s1")
PAIRS = (b"p0", b"p1")
CAPPED = b"capped"
WATCHED = b"watched"
QUEUE = b"queue"
GROUPS = (b"g0", b"g1")
# The second group has a policy: what was delivered so often is moved instead of claimed.
DEAD_LETTERS = b"dead"
MAX_DELIVERIES = 2
_CAP = 20
_PAUSE_S = 0.02
_NEW_CONNECTIONS = 0.01  # so often a client connects again for no reason


def text(reply: Any) -> str:
    """A reply in one line of history, long ones cut."""
    line = f"error {reply}" if isinstance(reply, ErrorReply) else repr(reply)
    return line if len(line) < 200 else f"{line[:200]}..."


class Worker:
    """A client that goes on until `is_over` is set."""

    def __init__(
        self, name: str, loop: Loop, random: Random, primary: Callable[[], str], records: Records, history: History
    ) -> None:
        self.name = name
        self.is_over = False
        self.pace = 1.0
        self.replicas = 0  # how many a write may be waited for
        self._loop = loop
        self._random = random
        self._primary = primary
        self._records = records
        self._history = history
        self._client: Client | None = None
        self._number = 0
        self._stamp: Stamp | None = None  # where the server's log ended when it answered last
        self._stamps: list[Stamp | None] = []  # and when it gave each of these answers
        self._account: Account = records.account(name.encode())

    async def run(self) -> None:
        while not self.is_over:
            if self._random.random() < _NEW_CONNECTIONS:
                self._close()
            try:
                await self._work()
            except Lost:
                self._history.note(self.name, "lost the connection")
                self._close()
                await asyncio.sleep(self._random.uniform(0.01, 0.3))
            else:
                await asyncio.sleep(self._random.expovariate(1 / _PAUSE_S) * self.pace)
        self._close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await Client.connect(self._loop, self._primary())
        return self._client

    async def _ask(self, *words: Word, patience_s: float = 3.0) -> Any:
        (reply,) = await self._ask_all([words], patience_s)
        return reply

    async def _ask_all(self, commands: list[tuple[Word, ...]], patience_s: float = 3.0) -> list[Any]:
        """Send commands together; -> their replies.  Raises Lost."""
        client = await self._connected()
        self._history.operations += len(commands)
        shown = " | ".join(" ".join(w.decode() if isinstance(w, bytes) else str(w) for w in c) for c in commands)
        self._history.note(self.name, f"asks {shown}")
        client.send(*commands)
        replies, self._stamps = [], []
        for _ in commands:
            replies.append(await client.receive(patience_s))
            self._stamps.append(client.stamp)
        self._stamp = client.stamp
        self._history.note(self.name, f"told {' | '.join(map(text, replies))}")
        if any(isinstance(reply, ErrorReply) and _sends_away(reply) for reply in replies):
            self._close()  # another server is the primary, or this one may take no writes
            await asyncio.sleep(0.1)
        return replies

    @property
    def _now(self) -> float:
        return self._history.now

    def _payload(self) -> bytes:
        self._number += 1
        return b"%b:%d" % (self.name.encode(), self._number)

    async def _work(self) -> None:
        raise NotImplementedError

    def _settle(self, one: Add | Delete | TrimBelow | Ack, reply: Any) -> bool:
        """Note the fate that the reply tells; -> whether it was done."""
        is_done = not isinstance(reply, ErrorReply)
        one.fate = Fate.ACKNOWLEDGED if is_done else Fate.FAILED
        one.told_at = self._now
        self._records.stamps[id(one)] = self._stamp
        return is_done

    def _add(self, stream: bytes, **more: Any) -> Add:
        add = Add(stream, self._payload(), asked_at=self._now, **more)
        self._account.adds.append(add)
        return add

    def _settle_add(self, add: Add, reply: Any) -> None:
        if self._settle(add, reply):
            add.entry_id = read_id(reply)
            self._records.told.append(add)


def _sends_away(reply: Exception) -> bool:
    return str(reply).startswith(("READONLY", "MISCONF", "MASTERDOWN", "LOADING", "NOREPLICAS", "UNBLOCKED"))


class Producer(Worker):
    """Adds entries, alone, in runs and in pairs; deletes and trims some; waits for replicas now and then."""

    async def _work(self) -> None:
        random = self._random
        chance = random.random()
        if chance < 0.45:
            await self._add_some(random.choice((*STREAMS, QUEUE)), random.choice((1, 1, 1, 2, 5, 20)))
        elif chance < 0.65:
            await self._add_pair()
        elif chance < 0.75:
            await self._add_capped()
        elif chance < 0.85:
            await self._delete()
        elif chance < 0.88:
            await self._trim()
        else:
            await self._look()

    async def _add_some(self, stream: bytes, count: int) -> None:
        adds = [self._add(stream) for _ in range(count)]
        commands: list[tuple[Word, ...]] = [("XADD", add.stream, "*", "n", add.payload) for add in adds]
        if self._random.random() < 0.05:
            commands.append(("SAVE",))  # a checkpoint in the midst of a tick
        waits = self.replicas and self._random.random() < 0.3
        if waits:
            commands.append(("WAIT", self.replicas, 1000))
        replies = await self._ask_all(commands)
        for add, reply in zip(adds, replies, strict=False):
            self._settle_add(add, reply)
        if waits and replies[-1] == self.replicas and self._stamp is not None:
            self._records.confirmed += [(add, self._stamp) for add in adds if add.fate is Fate.ACKNOWLEDGED]
            if self._stamps[-2] is not None and adds[-1].fate is Fate.ACKNOWLEDGED:
                self._records.on_confirmed(self._stamps[-2])

    async def _add_pair(self) -> None:
        first = self._add(PAIRS[0], pair=b"%b/%d" % (self.name.encode(), self._number))
        second = self._add(PAIRS[1], pair=first.pair)
        self._number -= 1
        second.payload = first.payload
        self._number += 1
        commands: list[tuple[Word, ...]] = [("MULTI",)]
        commands += [("XADD", add.stream, "*", "n", add.payload) for add in (first, second)]
        commands.append(("EXEC",))
        if self._random.random() < 0.5:
            replies = await self._ask_all(commands)
        else:  # so that a stop may come in between
            replies = []
            for words in commands:
                if replies and self._client is None:
                    return  # the connection was given up in between
                replies.append(await self._ask(*words))
        results = replies[-1]
        if isinstance(results, ErrorReply):
            results = [results, results]
        for add, reply in zip((first, second), results, strict=True):
            self._settle_add(add, reply)

    async def _add_capped(self) -> None:
        add = self._add(CAPPED, max_length=_CAP)
        self._settle_add(add, await self._ask("XADD", CAPPED, "MAXLEN", "=", _CAP, "*", "n", add.payload))

    def _own(self) -> Add | None:
        known = [add for add in self._account.adds[-60:] if add.stream in STREAMS and add.entry_id is not None]
        return self._random.choice(known) if known else None

    async def _delete(self) -> None:
        add = self._own()
        if add is None or add.entry_id is None:
            return
        delete = Delete(add.stream, add.entry_id, asked_at=self._now)
        self._account.deletes.append(delete)
        reply = await self._ask("XDEL", add.stream, _id(add.entry_id))
        self._settle(delete, reply)
        if reply == 0:  # a power cut has taken the entry; another may get its ID
            delete.fate = Fate.FAILED

    async def _trim(self) -> None:
        add = self._own()
        if add is None or add.entry_id is None or add.stream != STREAMS[0]:
            return
        trim = TrimBelow(add.stream, add.entry_id, asked_at=self._now)
        self._account.trims.append(trim)
        self._settle(trim, await self._ask("XTRIM", add.stream, "MINID", _id(add.entry_id)))

    async def _look(self) -> None:
        stream = self._random.choice((*STREAMS, *PAIRS, QUEUE))
        asked_at = self._now
        reply = await self._ask("XREVRANGE", stream, "+", "-", "COUNT", self._random.choice((1, 5, 50)))
        if isinstance(reply, ErrorReply):
            return
        for entry_id, fields in reply:
            sight = Sight(stream, read_id(entry_id), fields[1], asked_at)
            self._account.seen.append(sight)
            self._records.stamps[id(sight)] = self._stamp


class Watcher(Worker):
    """Adds behind the last entry that it has seen; when there is a later one by then, WATCH must stop it."""

    async def _work(self) -> None:
        if self._random.random() < 0.3:
            add = self._add(WATCHED)
            self._settle_add(add, await self._ask("XADD", WATCHED, "*", "n", add.payload, "behind", ""))
            return
        _, last = await self._ask_all([("WATCH", WATCHED), ("XREVRANGE", WATCHED, "+", "-", "COUNT", 1)])
        if isinstance(last, ErrorReply):
            return
        seen = last[0][0] if last else b"0-0"
        add = self._add(WATCHED)
        *_, result = await self._ask_all(
            [("MULTI",), ("XADD", WATCHED, "*", "n", add.payload, "behind", seen), ("EXEC",)]
        )
        if result is None:
            add.fate = Fate.FAILED
            add.told_at = self._now
        else:
            self._settle_add(add, result if isinstance(result, ErrorReply) else result[0])


class Reader(Worker):
    """Follows the queue without a group: each entry that comes must wake it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._after: EntryID = (0, 0)

    async def _work(self) -> None:
        if self._random.random() < 0.2:
            self._after = (0, 0)  # what it has read may be lost with a primary
        block_ms = self._random.choice((20, 100, 400))
        asked_at = self._now
        words: list[Word] = ["XREAD", "COUNT", 1000, "BLOCK", block_ms, "STREAMS", QUEUE, _id(self._after)]
        reply = await self._ask(*words)
        if reply is None:
            self._records.waits.append(Wait(QUEUE, self._after, asked_at, block_ms / 1000, self._stamp))
        elif not isinstance(reply, ErrorReply):
            self._after = read_id(reply[0][1][-1][0])


class Consumer(Worker):
    """Reads for a group, acknowledges most of it, claims what others have left, and looks at what is pending."""

    group = GROUPS[0]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held: list[EntryID] = []
        self._is_made = False

    async def _work(self) -> None:
        if not self._is_made:
            reply = await self._ask("XGROUP", "CREATE", QUEUE, self.group, "0", "MKSTREAM")
            self._is_made = not isinstance(reply, ErrorReply) or str(reply).startswith("BUSYGROUP")
            if self._is_made and self.group == GROUPS[1]:
                policy = ("MAXDELIVERIES", MAX_DELIVERIES, "DEADLETTER", DEAD_LETTERS)
                await self._ask("XGROUP", "POLICY", QUEUE, self.group, *policy)
            return
        chance = self._random.random()
        if chance < 0.45:
            await self._read()
        elif chance < 0.8:
            await self._acknowledge()
        elif chance < 0.9:
            await self._claim()
        else:
            await self._count()

    async def _read(self) -> None:
        words: list[Word] = ["XREADGROUP", "GROUP", self.group, self.name, "COUNT", self._random.choice((1, 3, 20))]
        if self._random.random() < 0.5:
            words += ["BLOCK", self._random.choice((10, 200))]
        records = self._records
        lost = records.lost_reads
        lost[self.group] = lost.get(self.group, 0) + 1
        needs_no_ack = self._random.random() < 0.1
        words += ["NOACK"] if needs_no_ack else []
        reply = await self._ask(*words, "STREAMS", QUEUE, ">")
        lost[self.group] -= 1
        if isinstance(reply, ErrorReply):
            self._is_made = self._is_made and not str(reply).startswith("NOGROUP")
            return
        for entry_id, _ in reply[0][1] if reply else ():
            delivery = Delivery(self.group, self.name.encode(), read_id(entry_id), self._now, self._stamp)
            records.deliveries.append(delivery)
            if needs_no_ack:
                ack = Ack(self.group, delivery.entry_id, self._now)
                records.acks.append(ack)
                self._settle(ack, reply)
            else:
                self._held.append(delivery.entry_id)

    async def _acknowledge(self) -> None:
        count = min(self._random.choice((1, 2, 10)), len(self._held))
        if not count:
            return
        ids = [self._held.pop(self._random.randrange(len(self._held))) for _ in range(count)]
        acks = [Ack(self.group, entry_id, self._now) for entry_id in ids]
        self._records.acks += acks
        reply = await self._ask("XACK", QUEUE, self.group, *map(_id, ids))
        if isinstance(reply, ErrorReply) or reply == len(acks):  # else some were lost with a primary, and come again
            for ack in acks:
                self._settle(ack, reply)

    async def _claim(self) -> None:
        reply = await self._ask("XAUTOCLAIM", QUEUE, self.group, self.name, 100, "0", "COUNT", 5)
        if isinstance(reply, ErrorReply):
            return
        for entry_id, _ in reply[1]:
            claim = Delivery(self.group, self.name.encode(), read_id(entry_id), self._now, self._stamp)
            self._records.claims.append(claim)
            self._held.append(claim.entry_id)

    async def _count(self) -> None:
        asked_at = self._now
        reply = await self._ask("XPENDING", QUEUE, self.group, "-", "+", 50)
        if isinstance(reply, ErrorReply):
            return
        for entry_id, _, _, count in reply:
            seen = Count(self.group, read_id(entry_id), count, asked_at, self._now, self._stamp)
            self._records.counts.append(seen)


def _id(entry_id: EntryID) -> bytes:
    return b"%d-%d" % entry_id
