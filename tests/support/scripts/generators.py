"""Random scripts of commands: few keys and few ids, so that they collide; mostly right words, sometimes wrong ones.

A script is a list of `Step`s, each a command on one of a few connections.  `Generator` draws from anything with the
methods of `random.Random`, so a seed gives a long script and Hypothesis (`st.randoms()`) gives many short ones.
Commands come in families, a family being weighted methods of a `Vocabulary` class: another family is another class.

What is never generated, because two sound servers may differ in it or a test could not end:
- waiting for ever (`BLOCK 0`) and lifetimes of seconds: whether a key has expired would depend on the machine;
- words of other data types: ours knows none, and Redis would then hold keys that ours cannot;
- ids with signs, blanks or NUL bytes, which Redis's number scanner happens to take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

Command = list[bytes]

KEYS: Final = (b"a", b"b", b"c", b"{t}d", b"", b"k\r\n\x00\xff")
DATABASES: Final = (b"0", b"1", b"2")
CONNECTIONS: Final = 3

MAX = b"18446744073709551615"

# Absolute deadlines far away compare exactly; relative ones are masked (see differences.py).
FAR_SECONDS: Final = 4_102_444_800  # the year 2100
RELATIVE_STEP_SECONDS: Final = 1_000


@dataclass(frozen=True)
class Step:
    """One command on connection number `connection`."""

    connection: int
    words: tuple[bytes, ...]


class Vocabulary:
    """Words that commands are made of, and the state a generator keeps to make interesting ones."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.tops: dict[bytes, tuple[int, int]] = {}  # where each key's last id is, more or less
        self.recent: dict[bytes, list[tuple[int, int]]] = {}  # ids lately offered to it
        self.lifetimes = 0

    # -- choosing

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one_of(self, choices: Sequence[bytes]) -> bytes:
        return choices[self.random.randrange(len(choices))]

    def number(self, low: int, high: int) -> bytes:
        return b"%d" % self.random.randint(low, high)

    def option(self, word: bytes) -> bytes:
        """An option word in some mixture of cases."""
        match self.random.randrange(4):
            case 0:
                return word.lower()
            case 1:
                return word.capitalize()
            case _:
                return word

    # -- words

    def key(self) -> bytes:
        return self.one_of((b"a", b"a", b"b", b"c")) if self.chance(0.9) else self.one_of(KEYS)

    def keys(self, most: int = 3) -> list[bytes]:
        return [self.key() for _ in range(self.random.randint(1, most))]

    def name(self) -> bytes:
        """A field or a value."""
        return self.one_of((b"f", b"v", b"g", b"", b"42", b"\x00\xff\r\n", b"long" * 20))

    def fields(self) -> list[bytes]:
        return [self.name() for _ in range(2 * self.random.choice((1, 1, 1, 2, 3)))]

    def near(self, key: bytes) -> tuple[int, int]:
        """Milliseconds and sequence number of an id that may well be in `key`."""
        recent = self.recent.get(key)
        if recent and self.chance(0.7):
            return recent[self.random.randrange(len(recent))]
        top_ms, _ = self.tops.get(key, (3, 0))
        return self.random.randint(max(0, top_ms - 8), top_ms + 1), self.random.randint(0, 3)

    def entry_id(self, key: bytes) -> bytes:
        """A plain id: no special form."""
        ms, seq = self.near(key)
        match self.random.randrange(20):
            case 0:
                return b"0-0"
            case 1:
                return b"0"
            case 2:
                return b"%d" % ms
            case 3:
                return b"00%d-0%d" % (ms, seq)
            case 4:
                return self.one_of((MAX + b"-" + MAX, MAX, MAX + b"-0", b"5-" + MAX))
            case _:
                return b"%d-%d" % (ms, seq)

    def ids(self, key: bytes, most: int = 4) -> list[bytes]:
        return [self.entry_id(key) for _ in range(self.random.randint(1, most))]

    def new_id(self, key: bytes) -> bytes:
        """An id for XADD: usually one that is accepted, and then remembered."""
        top_ms, top_seq = self.tops.get(key, (0, 0))
        if self.chance(0.006):
            return b"*"  # rare: afterwards no other id is high enough until the key goes
        if self.chance(0.15):
            return self.one_of(
                (b"%d-*" % top_ms, b"%d-*" % (top_ms + 1), b"%d-%d" % self.near(key), self.entry_id(key))
            )
        if self.chance(0.5):
            ms, seq = top_ms, top_seq + self.random.randint(1, 2)
        else:
            ms, seq = top_ms + self.random.randint(1, 2), self.random.randint(0, 2)
        self.tops[key] = (ms, seq)
        self.recent[key] = [*self.recent.get(key, ())[-12:], (ms, seq)]
        return b"%d-%d" % (ms, seq) if seq or self.chance(0.5) else b"%d" % ms

    def edge(self, key: bytes) -> bytes:
        """An end of a range."""
        if self.chance(0.4):
            return self.one_of((b"-", b"+"))
        return (b"(" if self.chance(0.25) else b"") + self.entry_id(key)

    def count(self) -> bytes:
        return self.one_of((b"0", b"1", b"2", b"3", b"10", b"-1", b"1000"))

    def trim(self, key: bytes) -> list[bytes]:
        strategy = self.one_of((b"MAXLEN", b"MINID"))
        words = [self.option(strategy)]
        sign = self.one_of((b"", b"=", b"~", b"~"))
        if sign:
            words.append(sign)
        words.append(self.number(0, 12) if strategy == b"MAXLEN" else self.entry_id(key))
        if sign == b"~" and self.chance(0.5):
            words += [self.option(b"LIMIT"), self.one_of((b"0", b"1", b"3", b"5", b"100"))]
        return words

    def relative_lifetime(self) -> int:
        """Seconds, never twice the same: `GT` and `LT` must not depend on the millisecond in which a command ran."""
        self.lifetimes += 1
        return RELATIVE_STEP_SECONDS * (self.lifetimes + 10)

    def lifetime_condition(self) -> list[bytes]:
        if self.chance(0.6):
            return []
        return [self.option(self.one_of((b"NX", b"XX", b"GT", b"LT"))) for _ in range(self.random.choice((1, 1, 1, 2)))]

    def pattern(self) -> bytes:
        return self.one_of((b"*", b"a", b"?", b"[ab]", b"[^a]", b"{t}*", b"", b"k*", b"\\a", b"[a-c]"))


class StreamCommands(Vocabulary):
    """The stream commands that need no group."""

    def xadd(self) -> Command:
        key = self.key()
        words = [b"XADD", key]
        if self.chance(0.1):
            words.append(self.option(b"NOMKSTREAM"))
        if self.chance(0.15):
            words += self.trim(key)
        return [*words, self.new_id(key), *self.fields()]

    def xlen(self) -> Command:
        return [b"XLEN", self.key()]

    def _range(self, name: bytes) -> Command:
        key = self.key()
        words = [name, key, self.edge(key), self.edge(key)]
        if self.chance(0.6):  # two ends by chance are the wrong way round as often as not
            low = b"-" if self.chance(0.4) else b"%d-%d" % self.near(key)
            high = b"+" if self.chance(0.6) else b"%d" % (self.near(key)[0] + 1)
            words[2:] = [low, high] if name == b"XRANGE" else [high, low]
        if self.chance(0.4):
            words += [self.option(b"COUNT"), self.count()]
        return words

    def xrange(self) -> Command:
        return self._range(b"XRANGE")

    def xrevrange(self) -> Command:
        return self._range(b"XREVRANGE")

    def xread(self) -> Command:
        words = [b"XREAD"]
        if self.chance(0.4):
            words += [self.option(b"COUNT"), self.count()]
        if self.chance(0.02):
            words += [self.option(b"BLOCK"), b"1"]
        keys = self.keys()
        ids = [
            self.one_of((b"$", b"0", b"+", b"0-0", b"2")) if self.chance(0.4) else self.entry_id(key) for key in keys
        ]
        return [*words, self.option(b"STREAMS"), *keys, *ids]

    def xdel(self) -> Command:
        key = self.key()
        return [b"XDEL", key, *self.ids(key)]

    def xtrim(self) -> Command:
        key = self.key()
        return [b"XTRIM", key, *self.trim(key)]

    def xsetid(self) -> Command:
        key = self.key()
        words = [b"XSETID", key, self.entry_id(key) if self.chance(0.5) else self.new_id(key)]
        if self.chance(0.4):
            words += [self.option(b"ENTRIESADDED"), self.number(-1, 30)]
        if self.chance(0.3):
            words += [self.option(b"MAXDELETEDID"), self.entry_id(key)]
        return words

    def xinfo_stream(self) -> Command:
        words = [self.option(b"XINFO"), self.option(b"STREAM"), self.key()]
        if self.chance(0.6):
            words.append(self.option(b"FULL"))
            if self.chance(0.5):
                words += [self.option(b"COUNT"), self.count()]
        return words

    def xinfo_help(self) -> Command:
        return [b"XINFO", self.option(b"HELP")]


class KeyCommands(Vocabulary):
    """Commands on whole keys and databases."""

    def delete(self) -> Command:
        return [self.one_of((b"DEL", b"UNLINK")), *self.keys()]

    def exists(self) -> Command:
        return [self.one_of((b"EXISTS", b"TOUCH")), *self.keys()]

    def type(self) -> Command:
        return [b"TYPE", self.key()]

    def list_keys(self) -> Command:
        return [b"KEYS", self.pattern()]

    def scan(self) -> Command:
        words = [b"SCAN", b"0"]
        if self.chance(0.5):
            words += [self.option(b"MATCH"), self.pattern()]
        if self.chance(0.9):
            words += [self.option(b"COUNT"), self.one_of((b"1000", b"1000", b"1", b"0", b"x"))]
        if self.chance(0.3):
            words += [self.option(b"TYPE"), self.one_of((b"stream", b"hash", b"STREAM"))]
        return words

    def rename(self) -> Command:
        return [self.one_of((b"RENAME", b"RENAMENX")), self.key(), self.key()]

    def copy(self) -> Command:
        words = [b"COPY", self.key(), self.key()]
        if self.chance(0.5):
            words += [self.option(b"DB"), self.one_of((*DATABASES, b"16", b"-1"))]
        if self.chance(0.5):
            words.append(self.option(b"REPLACE"))
        return words

    def move(self) -> Command:
        return [b"MOVE", self.key(), self.one_of((*DATABASES, b"99"))]

    def dbsize(self) -> Command:
        return [b"DBSIZE"]

    def randomkey(self) -> Command:
        return [b"RANDOMKEY"]

    def flush(self) -> Command:
        words = [b"FLUSHDB" if self.chance(0.7) else b"FLUSHALL"]
        if self.chance(0.3):
            words.append(self.option(self.one_of((b"ASYNC", b"SYNC"))))
        return words

    def swapdb(self) -> Command:
        return [b"SWAPDB", self.one_of((*DATABASES, b"16")), self.one_of(DATABASES)]

    def expire(self) -> Command:
        name = self.one_of((b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT"))
        unit = 1000 if name.startswith(b"P") else 1
        if self.chance(0.1):
            amount = self.random.choice((-1, 0, -(2**63), 2**63 - 1))
        elif name.endswith(b"AT"):
            amount = (FAR_SECONDS + self.random.randint(0, 3)) * unit
        else:
            amount = self.relative_lifetime() * unit
        return [name, self.key(), b"%d" % amount, *self.lifetime_condition()]

    def lifetime(self) -> Command:
        return [self.one_of((b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME")), self.key()]

    def persist(self) -> Command:
        return [b"PERSIST", self.key()]

    def object(self) -> Command:
        if self.chance(0.1):
            return [b"OBJECT", b"HELP"]
        return [b"OBJECT", self.option(self.one_of((b"ENCODING", b"REFCOUNT", b"IDLETIME", b"FREQ"))), self.key()]

    def memory_usage(self) -> Command:
        words = [b"MEMORY", b"USAGE", self.key()]
        if self.chance(0.3):
            words += [b"SAMPLES", self.one_of((b"0", b"5", b"-1"))]
        return words


class ConnectionCommands(Vocabulary):
    """What a connection does apart from data."""

    def select(self) -> Command:
        return [b"SELECT", b"0" if self.chance(0.6) else self.one_of((*DATABASES, *DATABASES, b"16", b"-1", b"x"))]

    def ping(self) -> Command:
        return [b"PING"] if self.chance(0.5) else [b"PING", self.name()]

    def echo(self) -> Command:
        return [b"ECHO", self.name()]

    def unknown(self) -> Command:
        return [self.one_of((b"XFOO", b"xadd2", b"no such", b"", b"a\r\nb", b"y" * 200)), *self.keys()]

    def unwatch(self) -> Command:
        return [b"UNWATCH"]

    def watch(self) -> Command:
        return [b"WATCH", *self.keys()]


Maker = Callable[[Any], Command]

# A family is a list of (weight, method).  The methods of one family may be of different classes: all classes below are
# mixed into the generator.
Family = Sequence[tuple[int, Maker]]

STREAMS: Final[Family] = [
    (120, StreamCommands.xadd),
    (6, StreamCommands.xlen),
    (20, StreamCommands.xrange),
    (16, StreamCommands.xrevrange),
    (20, StreamCommands.xread),
    (30, StreamCommands.xdel),
    (16, StreamCommands.xtrim),
    (8, StreamCommands.xsetid),
    (20, StreamCommands.xinfo_stream),
    (1, StreamCommands.xinfo_help),
]

KEYSPACE: Final[Family] = [
    (6, KeyCommands.delete),
    (5, KeyCommands.exists),
    (2, KeyCommands.type),
    (2, KeyCommands.list_keys),
    (4, KeyCommands.scan),
    (7, KeyCommands.rename),
    (9, KeyCommands.copy),
    (5, KeyCommands.move),
    (2, KeyCommands.dbsize),
    (2, KeyCommands.randomkey),
    (1, KeyCommands.flush),
    (1, KeyCommands.swapdb),
    (8, KeyCommands.expire),
    (6, KeyCommands.lifetime),
    (3, KeyCommands.persist),
    (3, KeyCommands.object),
    (2, KeyCommands.memory_usage),
]

CONNECTION: Final[Family] = [
    (4, ConnectionCommands.select),
    (2, ConnectionCommands.ping),
    (2, ConnectionCommands.echo),
    (2, ConnectionCommands.unknown),
    (2, ConnectionCommands.unwatch),
    (4, ConnectionCommands.watch),
]

ALL_FAMILIES: Final[Sequence[Family]] = (STREAMS, KEYSPACE, CONNECTION)

# Words that are wrong almost everywhere.  None is a small positive number: it could become a lifetime.
JUNK: Final = (
    b"", b"x", b"-", b"+", b"~", b"=", b"*", b"(", b"$", b">", b"1-", b"-1", b"1-1-1", b"1e3", b"3.5", b"abc",
    b"18446744073709551616-0", b"9223372036854775808", b"9" * 130, b"COUNT", b"LIMIT", b"MAXLEN", b"MINID",
    b"NOMKSTREAM", b"REPLACE", b"FULL", b"MATCH", b"STREAMS", b"NOACK", b"ENTRIESADDED", b"NX", b"GT", b"a\r\nb",
)  # fmt: skip


class Generator(StreamCommands, KeyCommands, ConnectionCommands):
    """Makes scripts from families of commands on several connections, with transactions and wrong words in between."""

    def __init__(self, random: Random, families: Sequence[Family] = ALL_FAMILIES, *, wrong: float = 0.1) -> None:
        super().__init__(random)
        self.wrong = wrong
        self._makers = [maker for family in families for _, maker in family]
        self._weights = [weight for family in families for weight, _ in family]
        total = 0
        self._ladder: list[int] = [total := total + weight for weight in self._weights]
        self._queueing = [False] * CONNECTIONS

    def command(self) -> Command:
        """One command of the families, right words only."""
        ticket = self.random.randrange(self._ladder[-1])
        maker = next(m for m, top in zip(self._makers, self._ladder, strict=True) if ticket < top)
        return maker(self)

    def spoil(self, words: Command) -> Command:
        """The same command with a word too few or too many, or a wrong one."""
        if b"BLOCK" in (word.upper() for word in words):
            return words  # a wrong timeout is a long one
        lifetime = b"EXPIRE" in words[0].upper()
        words = list(words)
        place = self.random.randrange(len(words))
        match self.random.randrange(5):
            case 0 if len(words) > 1:
                del words[max(1, place)]
            case 1:
                words.insert(place + 1, words[max(place, min(1, len(words) - 1))])
            case 2 if len(words) > 2 and not lifetime:
                other = self.random.randrange(1, len(words))
                place = max(1, place)
                words[place], words[other] = words[other], words[place]
            case 3 if len(words) > 1:
                words[max(1, place)] = self.one_of(JUNK)
            case _:
                words.insert(place + 1, self.one_of(JUNK))
        return words

    def steps(self) -> list[Step]:
        """The next few steps: usually a run of commands on one connection."""
        connection = self.random.randrange(CONNECTIONS)
        steps: list[Command] = []
        queueing = self._queueing[connection]
        if queueing and self.chance(0.4):
            steps.append([b"EXEC"] if self.chance(0.8) else [b"DISCARD"])
            self._queueing[connection] = False
        elif not queueing and self.chance(0.08):
            if self.chance(0.4):
                steps.append([b"WATCH", *self.keys()])
            steps.append([b"MULTI"])
            self._queueing[connection] = True
        elif self.chance(0.01):
            steps.append([self.one_of((b"EXEC", b"DISCARD", b"MULTI")), b"extra"])
        elif self.chance(0.01):
            steps.append([b"MULTI"] if queueing else [self.one_of((b"EXEC", b"DISCARD"))])
        for _ in range(self.random.choice((1, 1, 2, 3, 8))):
            words = self.command()
            if self.chance(self.wrong):
                words = self.spoil(words)
            steps.append(words)
        if self.chance(0.04):  # a longer stream, or most trims would find nothing to do
            key = self.key()
            steps += [[b"XADD", key, self.new_id(key), *self.fields()] for _ in range(12)]
        return [Step(connection, tuple(words)) for words in steps]

    def script(self, length: int) -> list[Step]:
        """About `length` steps; transactions that are open at the end are executed."""
        steps: list[Step] = []
        while len(steps) < length:
            steps += self.steps()
        for connection, queueing in enumerate(self._queueing):
            if queueing:
                steps.append(Step(connection, (b"EXEC",)))
        self._queueing = [False] * CONNECTIONS
        return steps
