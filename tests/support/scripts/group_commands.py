"""The vocabulary of consumer groups, for the script generator: what redis-server 7.0 knows, and what came later.

Idle times are multiples of `IDLE_STEP_MS` and far apart, so that whether an entry is idle for long enough does not
depend on how fast the machine runs the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.support.scripts.generators import Command, Family, Vocabulary

GROUPS: Final = (b"g", b"h", b"")
DEAD_LETTERS: Final = (b"dead", b"dead", b"b", b"a")
CONSUMERS: Final = (b"Alice", b"Bob", b"", b"Carol")

IDLE_STEP_MS: Final = 10_000_000
MIN_IDLES: Final = (b"0", b"5000000", b"15000000", b"95000000", b"-1")


class GroupCommands(Vocabulary):
    """Groups as redis-server 7.0 knows them."""

    def group(self) -> bytes:
        return GROUPS[0] if self.chance(0.75) else self.one_of(GROUPS)

    def consumer(self) -> bytes:
        return self.one_of(CONSUMERS)

    def min_idle(self) -> bytes:
        return b"0" if self.chance(0.5) else self.one_of(MIN_IDLES)

    def position(self, key: bytes) -> bytes:
        return self.one_of((b"0", b"$", b"0")) if self.chance(0.6) else self.entry_id(key)

    def entries_read(self) -> list[bytes]:
        if self.chance(0.6):
            return []
        return [self.option(b"ENTRIESREAD"), self.one_of((b"0", b"1", b"2", b"5", b"-1", b"-2"))]

    def xgroup_create(self) -> Command:
        key = self.key()
        words = [b"XGROUP", self.option(b"CREATE"), key, self.group(), self.position(key)]
        options = [[self.option(b"MKSTREAM")] if self.chance(0.3) else [], self.entries_read()]
        self.random.shuffle(options)
        return words + options[0] + options[1]

    def xgroup_setid(self) -> Command:
        key = self.key()
        position = self.one_of((b"-", b"+")) if self.chance(0.1) else self.position(key)
        return [b"XGROUP", self.option(b"SETID"), key, self.group(), position, *self.entries_read()]

    def xgroup_destroy(self) -> Command:
        return [b"XGROUP", self.option(b"DESTROY"), self.key(), self.group()]

    def xgroup_createconsumer(self) -> Command:
        return [b"XGROUP", self.option(b"CREATECONSUMER"), self.key(), self.group(), self.consumer()]

    def xgroup_delconsumer(self) -> Command:
        return [b"XGROUP", self.option(b"DELCONSUMER"), self.key(), self.group(), self.consumer()]

    def xgroup_help(self) -> Command:
        return [self.one_of((b"XGROUP", b"XINFO")), self.one_of((b"HELP", b"NONSENSE"))]

    def read_options(self) -> list[list[bytes]]:
        options = [[self.option(b"GROUP"), self.group(), self.consumer()]]
        if self.chance(0.5):
            options.append([self.option(b"COUNT"), self.count()])
        if self.chance(0.1):
            options.append([self.option(b"NOACK")])
        return options

    def xreadgroup(self) -> Command:
        options = self.read_options()
        self.random.shuffle(options)
        keys = self.keys(2)
        ids = []
        for key in keys:
            if self.chance(0.7):
                ids.append(b">")
            elif self.chance(0.1):
                ids.append(b"$")
            else:
                ids.append(b"0" if self.chance(0.5) else self.entry_id(key))
        words = [word for option in options for word in option]
        return [b"XREADGROUP", *words, self.option(b"STREAMS"), *keys, *ids]

    def xack(self) -> Command:
        key = self.key()
        return [b"XACK", key, self.group(), *self.ids(key)]

    def xpending(self) -> Command:
        key = self.key()
        words = [b"XPENDING", key, self.group()]
        if self.chance(0.4):
            return words
        if self.chance(0.3):
            words += [self.option(b"IDLE"), self.min_idle()]
        words += [self.edge(key), self.edge(key)] if self.chance(0.4) else [b"-", b"+"]
        words.append(self.count())
        return [*words, self.consumer()] if self.chance(0.3) else words

    def claim_options(self, key: bytes) -> list[bytes]:
        words: list[bytes] = []
        while self.chance(0.45):
            match self.random.randrange(6):
                case 0:
                    idle = self.random.choice((0, 1, 2, 10)) * IDLE_STEP_MS
                    words += [self.option(b"IDLE"), b"%d" % idle]
                case 1:
                    words += [self.option(b"TIME"), self.one_of((b"1000000000000", b"0", b"-5", b"9999999999999"))]
                case 2:
                    words += [self.option(b"RETRYCOUNT"), self.one_of((b"0", b"1", b"7", b"-1"))]
                case 3:
                    words.append(self.option(b"FORCE"))
                case 4:
                    words.append(self.option(b"JUSTID"))
                case _:
                    words += [self.option(b"LASTID"), self.entry_id(key)]
        return words

    def xclaim(self) -> Command:
        key = self.key()
        ids = self.ids(key)
        return [b"XCLAIM", key, self.group(), self.consumer(), self.min_idle(), *ids, *self.claim_options(key)]

    def xautoclaim(self) -> Command:
        key = self.key()
        words = [b"XAUTOCLAIM", key, self.group(), self.consumer(), self.min_idle()]
        words.append(self.edge(key) if self.chance(0.5) else b"0")
        if self.chance(0.5):
            words += [self.option(b"COUNT"), self.count()]
        return [*words, self.option(b"JUSTID")] if self.chance(0.2) else words

    def xinfo_groups(self) -> Command:
        return [b"XINFO", self.option(b"GROUPS"), self.key()]

    def xinfo_consumers(self) -> Command:
        return [b"XINFO", self.option(b"CONSUMERS"), self.key(), self.group()]

    def xinfo_full(self) -> Command:
        words = [b"XINFO", b"STREAM", self.key(), self.option(b"FULL")]
        return [*words, self.option(b"COUNT"), self.one_of((b"0", b"1", b"3", b"-1"))] if self.chance(0.5) else words


class NewerCommands(GroupCommands):
    """What came after 7.0: CLAIM, references, release, idempotent production."""

    # When consumers and idempotence records go by themselves: soon, where the clock is moved by hand.
    consumer_ttls: Sequence[bytes] = (b"50000", b"50000", b"200000")
    idmp_durations: Sequence[bytes] = (b"100", b"1")
    records_any_entry = True

    def references(self) -> list[bytes]:
        return [self.option(self.one_of((b"KEEPREF", b"DELREF", b"ACKED")))] if self.chance(0.8) else []

    def read_options(self) -> list[list[bytes]]:
        options = super().read_options()
        if self.chance(0.4):
            options.append([self.option(b"CLAIM"), self.one_of(MIN_IDLES[:4])])
        if self.chance(0.1):
            options.append([self.option(b"MAXCOUNT"), self.number(0, 4)])
        return options

    def ids_block(self, key: bytes) -> list[bytes]:
        ids = self.ids(key)
        count = len(ids) + (self.random.choice((-1, 1)) if self.chance(0.05) else 0)
        return [self.option(b"IDS"), b"%d" % count, *ids]

    def _deletion(self, start: list[bytes], key: bytes) -> Command:
        blocks = [self.references(), self.ids_block(key)]
        self.random.shuffle(blocks)
        return start + blocks[0] + blocks[1]

    def xdelex(self) -> Command:
        key = self.key()
        return self._deletion([b"XDELEX", key], key)

    def xackdel(self) -> Command:
        key = self.key()
        return self._deletion([b"XACKDEL", key, self.group()], key)

    def xnack(self) -> Command:
        key = self.key()
        words = [b"XNACK", key, self.group(), self.option(self.one_of((b"SILENT", b"FAIL", b"FATAL")))]
        blocks = [self.ids_block(key)]
        if self.chance(0.2):
            blocks.append([self.option(b"RETRYCOUNT"), self.one_of((b"0", b"3", b"-1"))])
        if self.chance(0.2):
            blocks.append([self.option(b"FORCE")])
        self.random.shuffle(blocks)
        return words + [word for block in blocks for word in block]

    def xgroup_policy(self) -> Command:
        words = [b"XGROUP", self.option(b"POLICY"), self.key(), self.group()]
        if self.chance(0.1):
            return words
        most = [self.option(b"MAXDELIVERIES"), self.one_of((b"1", b"1", b"2", b"3"))]
        if self.chance(0.2):
            most[1] = self.one_of((b"0", b"off", b"-1", b"9223372036854775807"))
        options = [most] if self.chance(0.9) else []
        if self.chance(0.9 if options and most[1] in b"123" else 0.1):
            options.append([self.option(b"DEADLETTER"), self.one_of(DEAD_LETTERS)])
        if self.chance(0.6):
            ttl = self.one_of(self.consumer_ttls) if self.chance(0.8) else self.one_of((b"OFF", b"-5"))
            options.append([self.option(b"CONSUMERTTL"), ttl])
        self.random.shuffle(options)
        return words + [word for option in options for word in option]

    def xtrim_references(self) -> Command:
        key = self.key()
        return [b"XTRIM", key, *self.trim(key), *self.references()]

    def xadd_references(self) -> Command:
        key = self.key()
        return [b"XADD", key, *self.references(), *self.trim(key), self.new_id(key), *self.fields()]

    def xadd_idempotent(self) -> Command:
        words = [b"XADD", self.key()]
        producer = self.one_of((b"p", b"q"))
        if self.chance(0.5):
            words += [self.option(b"IDMPAUTO"), producer]
        else:
            words += [self.option(b"IDMP"), producer, self.one_of((b"i", b"j", b"k"))]
        return [*words, b"*", b"f", self.number(0, 3)]

    def xcfgset(self) -> Command:
        words = [b"XCFGSET", self.key()]
        if self.chance(0.6):
            words += [self.option(b"IDMP-DURATION"), self.one_of((*self.idmp_durations, b"0", b"86401"))]
        if self.chance(0.6):
            words += [self.option(b"IDMP-MAXSIZE"), self.one_of((b"2", b"100", b"0"))]
        return words

    def xidmprecord(self) -> Command:
        key = self.key()
        entry_id = self.entry_id(key) if self.records_any_entry else b"5000000000000-0"
        return [b"XIDMPRECORD", key, self.one_of((b"p", b"q", b"")), self.one_of((b"i", b"x", b"")), entry_id]


class LastingCommands(NewerCommands):
    """For a real clock: nothing goes by itself while a test looks, however slow the machine."""

    consumer_ttls = (b"5000000000", b"5000000000", b"20000000000")
    idmp_durations = (b"86400", b"80000")
    records_any_entry = False  # the next sweep takes the record of an entry whose ID is an old time; here it has none


GROUP_FAMILY: Final[Family] = [
    (10, GroupCommands.xgroup_create),
    (4, GroupCommands.xgroup_setid),
    (1, GroupCommands.xgroup_destroy),
    (2, GroupCommands.xgroup_createconsumer),
    (1, GroupCommands.xgroup_delconsumer),
    (1, GroupCommands.xgroup_help),
    (30, GroupCommands.xreadgroup),
    (8, GroupCommands.xack),
    (8, GroupCommands.xpending),
    (12, GroupCommands.xclaim),
    (8, GroupCommands.xautoclaim),
    (4, GroupCommands.xinfo_groups),
    (4, GroupCommands.xinfo_consumers),
    (4, GroupCommands.xinfo_full),
]

NEWER_FAMILY: Final[Family] = [
    (12, NewerCommands.xgroup_policy),
    (6, NewerCommands.xdelex),
    (6, NewerCommands.xackdel),
    (8, NewerCommands.xnack),
    (5, NewerCommands.xtrim_references),
    (4, NewerCommands.xadd_references),
    (6, NewerCommands.xadd_idempotent),
    (2, NewerCommands.xcfgset),
    (3, NewerCommands.xidmprecord),
]
