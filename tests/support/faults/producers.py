"""Threads that write to a server and keep account, and readers that note what they were shown.

What they do to which stream is chosen so that the ledger can judge it: nothing ever leaves `log` and `forever`, `cap`
is only ever cut by MAXLEN, `gone` loses single entries, `floor` loses its beginning, `left` and `right` are written
together in transactions.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.faults import client_threads
from tests.support.faults.ledger import Account, Add, Contents, Delete, EntryID, Fate, Ledger, Sight, TrimBelow, read_id
from tests.support.raw import Node, RawClient, Word, encode, parse
from tests.support.servers import Server
from tests.support.waiting import until

CAP = 40
SHARED = b"forever"  # the only stream that is not of one round
MAX_OPERATIONS = 4_000  # of one producer in one round: what is written must be read back in a moment
# Beyond these a producer pauses behind each batch: it is to write still when the server is hit, however late that is.
UNPAUSED_OPERATIONS = 500
PAUSE_S = 0.005


@dataclass
class Operation:
    """Commands sent together, and what their replies mean for the ledger."""

    commands: Sequence[Sequence[Word]]
    add: Sequence[Add] = ()
    removal: Delete | TrimBelow | None = None

    def settle(self, replies: Sequence[bytes], asked_at: float) -> None:
        for one in (*self.add, *((self.removal,) if self.removal else ())):
            one.asked_at, one.told_at = asked_at, time.monotonic()
        if self.removal is not None:
            self.removal.fate = Fate.FAILED if replies[0].startswith(b"-") else Fate.ACKNOWLEDGED
            self.removal.found_none = replies[0] == b":0\r\n"
            return
        reply = parse(replies[-1])
        results = reply.children if len(self.commands) > 1 else (reply,)
        if results is None:  # the whole transaction was refused
            results = (reply,) * len(self.add)
        for add, result in zip(self.add, results, strict=True):
            if result.kind == "-":
                add.fate = Fate.FAILED
            else:
                add.fate, add.entry_id = Fate.ACKNOWLEDGED, read_id(result.text)


class Worker(client_threads.ClientThread):
    """Ends when asked, too."""

    def __init__(self, server: Server, account: Account, seed: int) -> None:
        super().__init__(server)
        self.account = account
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.acknowledged = 0  # of what was added
        self.first_refusal: bytes | None = None


class Producer(Worker):
    """Writes unique payloads, `depth` operations at a time."""

    def __init__(self, server: Server, account: Account, seed: int, *, prefix: bytes, depth: int) -> None:
        super().__init__(server, account, seed)
        self.prefix = prefix
        self.depth = depth
        self._serial = itertools.count()

    def work(self, client: RawClient) -> None:
        for number in range(MAX_OPERATIONS // self.depth):
            if self.stopping.is_set():
                return
            if number * self.depth > UNPAUSED_OPERATIONS:
                time.sleep(PAUSE_S)
            batch = [self.operation() for _ in range(self.depth)]
            asked_at = time.monotonic()
            client.send_bytes(b"".join(encode(words) for one in batch for words in one.commands))
            for one in batch:
                replies = [client.reply() for _ in one.commands]
                self.first_refusal = self.first_refusal or next((r for r in replies if r.startswith(b"-")), None)
                one.settle(replies, asked_at)
                self.acknowledged += sum(add.fate is Fate.ACKNOWLEDGED for add in one.add)

    def operation(self) -> Operation:
        payload = b"%b-%d" % (self.account.name, next(self._serial))
        payload += b"." * self.random.choice((0, 0, 10, 300))
        match self.random.randrange(12):
            case 0 | 1:
                return self.transaction(payload)
            case 2:
                return self.append(b"cap", payload, CAP)
            case 3:
                return self.append(b"gone", payload)
            case 4:
                return self.removal(b"gone") or self.append(b"gone", payload)
            case 5:
                return self.append(b"floor", payload)
            case 6:
                return self.removal(b"floor") or self.append(b"floor", payload)
            case 7:
                return self.append(SHARED, payload, prefix=b"")
            case _:
                return self.append(b"log", payload)

    def append(self, name: bytes, payload: bytes, cap: int | None = None, prefix: bytes | None = None) -> Operation:
        stream = (self.prefix if prefix is None else prefix) + name
        add = Add(stream, payload, cap)
        self.account.adds.append(add)
        trim = () if cap is None else ("MAXLEN", "=", cap)
        return Operation([("XADD", stream, *trim, "*", "payload", payload)], [add])

    def transaction(self, payload: bytes) -> Operation:
        adds = [Add(self.prefix + side, payload, pair=self.prefix + payload) for side in (b"left", b"right")]
        self.account.adds += adds
        words = [("XADD", add.stream, "*", "payload", payload) for add in adds]
        return Operation([("MULTI",), *words, ("EXEC",)], adds)

    def removal(self, name: bytes) -> Operation | None:
        """Delete an entry of ours from `gone`, or cut `floor` below one; None while there is none."""
        stream = self.prefix + name
        mine = [add for add in self.account.adds[-400:] if add.stream == stream and add.entry_id is not None]
        if not mine:
            return None
        entry_id = self.random.choice(mine).entry_id
        assert entry_id is not None
        text = b"%d-%d" % entry_id
        if name == b"gone":
            delete = Delete(stream, entry_id)
            self.account.deletes.append(delete)
            return Operation([("XDEL", stream, text)], removal=delete)
        trim = TrimBelow(stream, entry_id)
        self.account.trims.append(trim)
        return Operation([("XTRIM", stream, "MINID", "=", text)], removal=trim)


class Reader(Worker):
    """Follows `log` with blocking reads and looks at the ends of the other streams."""

    def __init__(self, server: Server, account: Account, seed: int, *, prefix: bytes) -> None:
        super().__init__(server, account, seed)
        self.prefix = prefix

    def work(self, client: RawClient) -> None:
        last = b"0"
        log = self.prefix + b"log"
        for _ in range(MAX_OPERATIONS):
            if self.stopping.is_set():
                return
            read = client.tree("XREAD", "COUNT", 100, "BLOCK", 50, "STREAMS", log, last)
            for stream in read.children or ():
                entries = list(entries_of((stream.children or ())[1]))
                self.account.seen += [Sight(log, *entry, time.monotonic()) for entry in entries]
                last = b"%d-%d" % entries[-1][0]
            other = self.prefix + self.random.choice((b"cap", b"gone", b"floor", b"left"))
            for entry in entries_of(client.tree("XREVRANGE", other, "+", "-", "COUNT", 2)):
                self.account.seen.append(Sight(other, *entry, time.monotonic()))


def entries_of(node: Node) -> Iterator[tuple[EntryID, bytes]]:
    """Ids and payloads of an array of entries with one field each."""
    for entry in node.children or ():
        assert entry.children is not None
        fields = entry.children[1].children
        assert fields is not None
        yield read_id(entry.children[0].text), fields[1].text


def read_streams(server: Server, streams: set[bytes]) -> dict[bytes, Contents]:
    """What a running server holds of the given streams."""
    stores = {}
    with server.client() as client:
        for stream in streams:
            # both of one moment: a replica may be applying what its primary sends
            asked = (("MULTI",), ("XINFO", "STREAM", stream), ("XRANGE", stream, "-", "+"), ("EXEC",))
            about, shown = parse(client.pipeline(asked)[-1]).children or ()
            if about.kind == "-":
                continue
            numbers = {name.text: value.text for name, value in about.pairs()}
            entries = list(entries_of(shown))
            assert len(entries) == int(numbers[b"length"]), f"{stream!r}: XLEN does not count what XRANGE shows"
            stores[stream] = Contents(entries, int(numbers[b"entries-added"]))
    return stores


def start_workers(
    server: Server, ledger: Ledger, seed: int, round_number: int, depths: Sequence[int] = (1, 1, 4, 32)
) -> list[Worker]:
    """A producer for each of `depths`, pipelined or not, and one reader, on streams of this round."""
    prefix = b"%d:" % round_number
    workers: list[Worker] = [
        Producer(server, ledger.account(b"p%d.%d" % (round_number, n)), seed * 100 + n, prefix=prefix, depth=depth)
        for n, depth in enumerate(depths)
    ]
    workers.append(Reader(server, ledger.account(b"r%d" % round_number), seed * 100 + 99, prefix=prefix))
    for worker in workers:
        worker.start()
    return workers


def until_acknowledged(workers: Sequence[Worker], count: int) -> None:
    """Let them work until so many entries were acknowledged, however long that takes; or until one has failed."""

    def is_reached() -> bool:
        return sum(worker.acknowledged for worker in workers) >= count or any(worker.error for worker in workers)

    until(is_reached, f"{count} entries that are acknowledged")


def finish(workers: Sequence[Worker]) -> None:
    """Have all end, and wait for them, as in `client_threads`."""
    for worker in workers:
        worker.stopping.set()
    client_threads.finish(workers)
