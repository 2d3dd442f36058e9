"""How fast do consumers of a group process a stream: read, acknowledge, take over, look?

A round is what a consumer repeats: XREADGROUP of 1 or of 100 entries and an XACK of all of them, or an
XCLAIM of 100 that another consumer has pending.  One consumer waits for each reply before it goes on; many keep the
server busy, and send the acknowledgement and the next read in one piece, as pipelining clients do.

Short commands are measured pipelined as well, 200 to a piece, where the sockets cost nearly nothing: reads of one entry
with their acknowledgements, by one name or by many, XRANGE of one, XPENDING, and XCLAIM of one with JUSTID.  At last
entries are read, acknowledged and deleted, ten at a time, as by workers that leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.load.consumers import ASK_DONE, ENDS_DONE, Consumer, drive, exchange
from benchmarks.load.traffic import FIRST_MS, fields, load, read_for
from benchmarks.report import Answer, Budget, Measurement, at_least
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import Word, encode
from tests.support.servers import Server

KEY: Final = "events"
MANY: Final = 16
PLACE: Final = b"__place__"
_ID_BYTES: Final = len(b"%d-0" % FIRST_MS)
PIPELINE: Final = 200
_CLAIMED: Final = 10_000  # one by one, before XPENDING is measured again
_TEN: Final = 10
_STRIDE: Final = 7919  # from one place of the stream to the next; prime
_BUDGET: Final = at_least(1.0)
_PAIR_BUDGET: Final = at_least(0.9)
_SHORT_BUDGET: Final = at_least(0.8)


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def entry_id(number: int) -> bytes:
    return b"%d-0" % (FIRST_MS + number)


def ids(first: int, count: int) -> bytes:
    """Words of a request, or elements of a reply: the IDs of consecutive entries."""
    return b"".join(bulk(entry_id(number)) for number in range(first, first + count))


def entry_bytes() -> int:
    """The length of one entry in a reply; all entries have the same length."""
    return len(b"*2\r\n" + bulk(entry_id(0)) + b"*8\r\n" + b"".join(map(bulk, fields(0))))


class Reader:
    """Reads `count` entries, acknowledges them, reads the next; for `rounds` rounds."""

    def __init__(self, group: str, name: str, count: int, rounds: int, batches: Sequence[bytes] | None) -> None:
        """`batches` are the IDs of the entries by hundreds, None when one is read at a time."""
        self.rounds = 0
        self._most = rounds
        self._count = count
        self._batches = batches
        self._read = encode(("XREADGROUP", "GROUP", group, name, "COUNT", count, "STREAMS", KEY, ">"))
        self._ack = encode(("XACK", KEY, group))
        self._ack = b"*%d\r\n" % (3 + count) + self._ack.partition(b"\r\n")[2]
        head = b"*1\r\n*2\r\n" + bulk(KEY.encode()) + b"*%d\r\n" % count
        self._reply_bytes = len(head) + count * entry_bytes()
        self._id_at = len(head) + len(b"*2\r\n$%d\r\n" % _ID_BYTES)
        self._ack_bytes = len(b":%d\r\n" % count)

    def first(self) -> tuple[bytes, int]:
        return self._read, self._reply_bytes

    def acknowledgement(self, reply: memoryview) -> bytes:
        """Of what the reply to a read contains."""
        start = self._id_at + len(reply) - self._reply_bytes
        first_id = bytes(reply[start : start + _ID_BYTES])
        if self._batches is None:
            return self._ack + bulk(first_id)
        return self._ack + self._batches[(int(first_id[:-2]) - FIRST_MS) // self._count]

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        if len(reply) == self._reply_bytes:
            return self.acknowledgement(reply), self._ack_bytes
        self.rounds += 1
        return self.first() if self.rounds < self._most else None


class PipeliningReader(Reader):
    """As `Reader`, with the acknowledgement and the next read in one piece."""

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        if len(reply) == self._ack_bytes:
            self.rounds += 1
            return None
        ack = self.acknowledgement(reply)
        if self.rounds + 1 == self._most:
            return ack, self._ack_bytes
        self.rounds += 1
        return ack + self._read, self._ack_bytes + self._reply_bytes


class Claimer:
    """Claims hundreds of entries, one hundred after the other."""

    def __init__(self, group: str, name: str, batches: Sequence[bytes], *, just_id: bool) -> None:
        self.rounds = 0
        self._batches = batches
        words = ("XCLAIM", KEY, group, name, 0)
        count = len(words) + 100 + just_id
        self._head = b"*%d\r\n" % count + encode(words).partition(b"\r\n")[2]
        self._tail = bulk(b"JUSTID") if just_id else b""
        self._reply_bytes = len(b"*100\r\n") + 100 * (len(bulk(entry_id(0))) if just_id else entry_bytes())

    def first(self) -> tuple[bytes, int]:
        return self._head + self._batches[self.rounds] + self._tail, self._reply_bytes

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        self.rounds += 1
        return self.first() if self.rounds < len(self._batches) else None


class Pipeliner:
    """Sends pieces of requests, made beforehand; each reply is awaited whole.  A round is one request, or one pair."""

    def __init__(self, pieces: Sequence[bytes], rounds_a_piece: int) -> None:
        self.rounds = 0
        self._pieces = pieces
        self._rounds_a_piece = rounds_a_piece
        self._sent = 0

    def first(self) -> tuple[bytes, int]:
        return self._pieces[0] + ASK_DONE, ENDS_DONE

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        self.rounds += self._rounds_a_piece
        self._sent += 1
        return None if self._sent == len(self._pieces) else (self._pieces[self._sent] + ASK_DONE, ENDS_DONE)


def pieces(requests: Sequence[bytes], size: int) -> list[bytes]:
    return [b"".join(requests[at : at + size]) for at in range(0, len(requests), size)]


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.group_entries // (100 * MANY) * 100 * MANY
    batches = [ids(first, 100) for first in range(0, entries, 100)]
    rates: dict[str, tuple[Measurement, Measurement]] = {}
    for fsync in ("everysec", "always"):
        for contender in rig.turns(f"consumers, appendfsync {fsync}"):
            with rig.server(contender, fsync) as server:
                load(server.port, KEY, entries, explicit_ids=True)
                for what, budget, run in _runs(entries, batches):
                    rig.say(f"{what}, appendfsync {fsync}: {contender.value}")
                    rate = drive(server, run(server))
                    a_second, cpu = rates.setdefault(
                        f"{what}, {fsync}",
                        (
                            Measurement(f"{what}, {fsync}", "rounds/s", budget),
                            Measurement(f"{what}, {fsync}: server's CPU", "us/round"),
                        ),
                    )
                    samples_of(a_second, contender).append(rate.a_second)
                    samples_of(cpu, contender).append(rate.cpu_us)
                _check(server, contender, entries)
    return Answer(
        f"Consumers of a group: a stream of {entries:,} entries of 66 bytes",
        "XREADGROUP GROUP g c COUNT n STREAMS events >, XACK events g id ...; XCLAIM events g c 0 id ...; "
        "XPENDING events g id + 100; XRANGE events id + COUNT 1; XDEL events id ...",
        [measurement for pair in rates.values() for measurement in pair],
        (f"Many are {MANY} consumers that pipeline; one waits for each reply.",),
    )


Run = tuple[str, Budget | None, Callable[[Server], list[Consumer]]]


def _runs(entries: int, batches: Sequence[bytes]) -> list[Run]:
    """What is done with one server, each time with a group of its own."""
    singles = entries // 4

    def readers(group: str, count: int, total: int, among: int) -> Callable[[Server], list[Consumer]]:
        def make(server: Server) -> list[Consumer]:
            with server.client() as client:
                client.ask("XGROUP", "CREATE", KEY, group, 0)
            kind = Reader if among == 1 else PipeliningReader
            known = batches if count == 100 else None
            return [kind(group, f"c{n}", count, total // count // among, known) for n in range(among)]

        return make

    def claimers(group: str, among: int, *, just_id: bool) -> Callable[[Server], list[Consumer]]:
        def make(server: Server) -> list[Consumer]:
            if among == 1:
                read_for(server.port, KEY, group, entries)
            share = len(batches) // among
            return [
                Claimer(group, f"c{n}", batches[n * share : (n + 1) * share], just_id=just_id) for n in range(among)
            ]

        return make

    def pairs(names: int) -> Callable[[Server], list[Consumer]]:
        def make(server: Server) -> list[Consumer]:
            group = f"pairs-{names}"
            with server.client() as client:
                client.ask("XGROUP", "CREATE", KEY, group, 0)
            requests = [
                encode(("XREADGROUP", "GROUP", group, f"c{number % names}", "COUNT", 1, "STREAMS", KEY, ">"))
                + encode(("XACK", KEY, group, entry_id(number)))
                for number in range(singles)
            ]
            return [Pipeliner(pieces(requests, PIPELINE // 2), PIPELINE // 2)]

        return make

    def workers(server: Server) -> list[Consumer]:
        with server.client() as client:
            client.ask("XGROUP", "CREATE", KEY, "workers", 0)
        read = encode(("XREADGROUP", "GROUP", "workers", "c", "COUNT", _TEN, "STREAMS", KEY, ">"))
        tens = [[entry_id(n) for n in range(first, first + _TEN)] for first in range(0, singles // _TEN * _TEN, _TEN)]
        requests = [read + encode(("XACK", KEY, "workers", *ten)) + encode(("XDEL", KEY, *ten)) for ten in tens]
        return [Pipeliner(pieces(requests, PIPELINE // _TEN), PIPELINE // _TEN)]

    def short(*words: Word, count: int = singles) -> Callable[[Server], list[Consumer]]:
        """Pipelined requests; PLACE among the words stands for IDs from all over the stream."""

        def make(server: Server) -> list[Consumer]:
            below = entries - 100
            places = (entry_id(number * _STRIDE % below) for number in range(count))
            requests = [encode([place if word == PLACE else word for word in words]) for place in places]
            return [Pipeliner(pieces(requests, PIPELINE), PIPELINE)]

        return make

    def after_claims(make: Callable[[Server], list[Consumer]]) -> Callable[[Server], list[Consumer]]:
        def make_after(server: Server) -> list[Consumer]:
            claims = [encode(("XCLAIM", KEY, "claims", "d", 0, entry_id(n), "JUSTID")) for n in range(_CLAIMED)]
            for piece in pieces(claims, PIPELINE):
                exchange(server.port, piece)
            return make(server)

        return make_after

    hundred = ("XPENDING", KEY, "claims", PLACE, "+", 100)
    return [
        (f"COUNT 1 and XACK, one, pipelined by {PIPELINE}", _PAIR_BUDGET, pairs(1)),
        (f"COUNT 1 and XACK, {MANY} names, pipelined by {PIPELINE}", _PAIR_BUDGET, pairs(MANY)),
        (f"XRANGE COUNT 1, pipelined by {PIPELINE}", _BUDGET, short("XRANGE", KEY, PLACE, "+", "COUNT", 1)),
        ("COUNT 1 and XACK, one", None, readers("one-1", 1, singles // 4, 1)),
        (f"COUNT 1 and XACK, {MANY}", None, readers("many-1", 1, singles, MANY)),
        ("COUNT 100 and XACK, one", _BUDGET, readers("one-100", 100, entries, 1)),
        (f"COUNT 100 and XACK, {MANY}", _BUDGET, readers("many-100", 100, entries, MANY)),
        ("XCLAIM of 100, one", None, claimers("claims", 1, just_id=False)),
        (f"XCLAIM of 100, {MANY}", None, claimers("claims", MANY, just_id=False)),
        (f"XCLAIM of 100 JUSTID, {MANY}", None, claimers("claims", MANY, just_id=True)),
        (f"XPENDING, summary, pipelined by {PIPELINE}", _SHORT_BUDGET, short("XPENDING", KEY, "claims")),
        (f"XPENDING of 100, pipelined by {PIPELINE}", _SHORT_BUDGET, short(*hundred, count=singles // 5)),
        (
            f"XPENDING of 100 after {_CLAIMED:,} claims of one, pipelined by {PIPELINE}",
            _SHORT_BUDGET,
            after_claims(short(*hundred, count=singles // 5)),
        ),
        (
            f"XCLAIM of 1 JUSTID, pipelined by {PIPELINE}",
            _SHORT_BUDGET,
            short("XCLAIM", KEY, "claims", "e", 0, PLACE, "JUSTID"),
        ),
        (f"COUNT {_TEN}, XACK and XDEL, one, pipelined by {PIPELINE // _TEN}", _BUDGET, workers),
    ]


def _check(server: Server, contender: Contender, entries: int) -> None:
    """Check that entries were delivered, and are no longer pending: otherwise the measurement is void."""
    singles = entries // 4
    read = {
        "one-1": singles // 4,
        "many-1": singles // MANY * MANY,
        **dict.fromkeys(("one-100", "many-100"), entries),
        **dict.fromkeys(("pairs-1", f"pairs-{MANY}"), singles),
        "workers": singles // _TEN * _TEN,
    }
    with server.client() as client:
        for group in read:
            summary = client.ask("XPENDING", KEY, group)
            if not summary.startswith(b"*4\r\n:0\r\n"):
                raise AssertionError(f"{contender.value}, {group}: {summary[:60]!r}")
        shown = client.tree("XINFO", "GROUPS", KEY).children or ()
    for about in ({name.text: value.text for name, value in group.pairs()} for group in shown):
        expected = read.get(about[b"name"].decode())
        if expected is not None and about[b"last-delivered-id"] != entry_id(expected - 1):
            raise AssertionError(f"{contender.value}, {about}: {expected} entries were to be delivered")
