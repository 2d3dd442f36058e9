"""Streams and consumer groups as dicts and lists: what the product must answer, said a second time and plainly.

Nothing of the product is used but the vocabulary of replies and `CommandError`, so a mistake has to be made twice to
stay hidden.  The behaviour is the newest that the public command pages describe; `test_oracle.py` compares what
redis-server 7.0.15 knows of it with the real one and names the differences.

Not modelled: blocking (a read that would wait answers a null array, as inside MULTI), other types than streams, the
byte limits of a node and of MAXSIZE, the times at which idempotency records expire (`sweep` is called instead).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NULL_ARRAY, OK
from tests.support.oracle.model import NEVER, Consumer, Group, Policy, Stream, Trim, Words, trim_stream
from tests.support.oracle.words import (
    INT64_MAX,
    INVALID_ID,
    MAX_HALF,
    MAX_ID,
    REFERENCES,
    SYNTAX,
    edge_id,
    ids_block,
    number,
    plain_id,
    read_options,
    text,
)

NO_SUCH_KEY = "ERR no such key"
SMALLER_THAN_TOP = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"
SMALLER_THAN_GIVEN = "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
NEEDS_GROUP = "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
TWO_TRIMS = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
KEY_REQUIRED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM "
    "option to create an empty stream automatically."
)
MEANINGLESS = (
    "ERR The %s ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by "
    "specifying a proper ID, or use the > ID to get new messages. The %s ID would just return an empty result set."
)
ARITY = {
    b"XADD": -5, b"XLEN": 2, b"XRANGE": -4, b"XREVRANGE": -4, b"XREAD": -4, b"XREADGROUP": -7, b"XACK": -4,
    b"XDEL": -3, b"XTRIM": -4, b"XSETID": -3, b"XPENDING": -3, b"XCLAIM": -6, b"XAUTOCLAIM": -6, b"XDELEX": -5,
    b"XACKDEL": -6, b"XCFGSET": -2, b"XIDMPRECORD": 5, b"XNACK": -7, b"DEL": -2, b"RENAME": 3, b"COPY": -3,
    b"FLUSHALL": -1,
    b"XGROUP CREATE": -5, b"XGROUP SETID": -5, b"XGROUP DESTROY": 4, b"XGROUP CREATECONSUMER": 5,
    b"XGROUP DELCONSUMER": 5, b"XGROUP POLICY": -4, b"XINFO STREAM": -3, b"XINFO GROUPS": 3, b"XINFO CONSUMERS": 4,
}  # fmt: skip


class Oracle:
    """One database of streams.  `execute` takes the words of a command and the clock; it returns or raises the reply.

    Every command has a method of its name, which expects the arity to be right.
    """

    unbalanced_read = "ERR Unbalanced '%s' list of streams: for each stream key an ID, '+', or '$' must be specified."
    unbalanced_group_read = "ERR Unbalanced '%s' list of streams: for each stream key an ID or '>' must be specified."
    meaningless = (b"$", b"+")
    new_stream: Callable[..., Stream] = Stream

    def __init__(self, *, node_max_entries: int = 100, idmp_duration: int = 100, idmp_maxsize: int = 100) -> None:
        self.streams: dict[bytes, Stream] = {}
        self.node_max_entries = node_max_entries
        self.idmp_defaults = {"idmp_duration": idmp_duration, "idmp_maxsize": idmp_maxsize}

    def execute(self, words: Words, now: int) -> Any:
        name = words[0].upper()
        if name in (b"XGROUP", b"XINFO"):
            if len(words) < 2:
                raise CommandError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
            name = name + b" " + words[1].upper()
            if name not in ARITY:
                raise CommandError(b"ERR unknown subcommand '%b'. Try %b HELP." % (words[1][:128], words[0].upper()))
        arity = ARITY[name]
        if len(words) != arity if arity > 0 else len(words) < -arity:
            raise CommandError(b"ERR wrong number of arguments for '%b' command" % name.lower().replace(b" ", b"|"))
        method = name.decode().lower().replace(" ", "_")
        return getattr(self, "del_" if method == "del" else method)(words, now)

    def sweep(self, now: int) -> None:
        """Idempotency records expire, which a server does now and then."""
        for stream in self.streams.values():
            oldest = now - stream.idmp_duration * 1000
            for producer, records in list(stream.producers.items()):
                stream.producers[producer] = {iid: at for iid, at in records.items() if at >> 64 > oldest}
                if not stream.producers[producer]:
                    del stream.producers[producer]

    def expire_consumers(self, now: int) -> None:
        """CONSUMERTTL of delivery policies, which a server sees to now and then."""
        for stream in self.streams.values():
            for group in stream.groups.values():
                oldest = now - group.policy.consumer_ttl
                for name, consumer in list(group.consumers.items()):
                    if group.policy.consumer_ttl and consumer.seen <= oldest and not group.owned(name):
                        del group.consumers[name]

    # -- lookups --

    def create(self, key: bytes) -> Stream:
        return self.streams.setdefault(key, self.new_stream(**self.idmp_defaults))

    def group_or_error(self, key: bytes, name: bytes, suffix: bytes = b"") -> tuple[Stream, Group]:
        stream = self.streams.get(key)
        if stream is None or name not in stream.groups:
            raise CommandError(b"NOGROUP No such key '%b' or consumer group '%b'%b" % (key, name, suffix))
        return stream, stream.groups[name]

    def touch(self, group: Group, name: bytes, now: int) -> Consumer:
        """The consumer, created if need be, seen now."""
        consumer = group.consumers.setdefault(name, Consumer(now))
        consumer.seen = now
        return consumer

    def is_too_often(self, key: bytes, policy: Policy, count: int) -> bool:
        """The policy rests when the dead-letter stream is the group's own by now, or has no IDs left."""
        if policy.dead_letter in (None, key) or count <= policy.max_deliveries:
            return False
        return self.streams.get(policy.dead_letter, Stream()).last_id <= MAX_ID - (1 << 16)

    def wears_out(self, key: bytes, group: Group, entry_id: int, count: int, now: int) -> bool:
        """Whether an entry that would be delivered for the `count`th time becomes a dead letter; it does so."""
        dead_letter = group.policy.dead_letter
        if dead_letter is None or not self.is_too_often(key, group.policy, count):
            return False
        pending = group.pel.pop(entry_id)
        origin = {
            b"riverbed-origin-key": key,
            b"riverbed-origin-id": text(entry_id),
            b"riverbed-group": next(name for name, other in self.streams[key].groups.items() if other is group),
            b"riverbed-consumer": pending.owner or b"",
            b"riverbed-deliveries": b"%d" % pending.count,
        }
        fields = self.streams[key].entries[entry_id] + [word for pair in origin.items() for word in pair]
        stream = self.create(dead_letter)
        stream.append(max(now << 64, stream.last_id + 1), fields, self.node_max_entries)
        return True

    # -- keys --

    def del_(self, words: Words, now: int) -> int:
        return sum(self.streams.pop(key, None) is not None for key in words[1:])

    def rename(self, words: Words, now: int) -> Any:
        if words[1] not in self.streams:
            raise CommandError(NO_SUCH_KEY)
        self.streams[words[2]] = self.streams.pop(words[1])
        return OK

    def copy(self, words: Words, now: int) -> int:
        replaces = words[3:] and words[3].upper() == b"REPLACE"
        if words[1] == words[2]:
            raise CommandError("ERR source and destination objects are the same")
        if words[1] not in self.streams or (words[2] in self.streams and not replaces):
            return 0
        self.streams[words[2]] = deepcopy(self.streams[words[1]])
        return 1

    def flushall(self, words: Words, now: int) -> Any:
        self.streams.clear()
        return OK

    # -- streams --

    def trim_options(self, words: Words, *, adding: bool) -> tuple[Trim, bool, tuple[Any, ...], int]:
        """The options of XADD and XTRIM: the trim, NOMKSTREAM, the producer's words, where the ID stands."""
        trim, at, make, idmp, limit, references = Trim(), 2, True, (), None, b""
        while at < len(words) and not (adding and words[at] == b"*"):
            word, more = words[at].upper(), len(words) - at - 1
            if word in (b"MAXLEN", b"MINID") and more:
                if trim.strategy:
                    raise CommandError(TWO_TRIMS)
                trim.strategy = word
                if more >= 2 and words[at + 1] in (b"~", b"="):
                    trim.approximate, at = words[at + 1] == b"~", at + 1
                trim.threshold = number(words[at + 1]) if word == b"MAXLEN" else plain_id(words[at + 1])
                if trim.threshold < 0:
                    raise CommandError("ERR The MAXLEN argument must be >= 0.")
                at += 2
            elif word == b"LIMIT" and more:
                limit, at = number(words[at + 1]), at + 2
                if limit < 0:
                    raise CommandError("ERR The LIMIT argument must be >= 0.")
            elif word in REFERENCES and not references:
                trim.references = references = word
                at += 1
            elif adding and word == b"NOMKSTREAM":
                make, at = False, at + 1
            elif adding and word in (b"IDMP", b"IDMPAUTO") and more >= (2 if word == b"IDMP" else 1):
                if idmp:
                    raise CommandError("ERR syntax error, IDMP/IDMPAUTO specified multiple times")
                idmp = tuple(words[at : at + (3 if word == b"IDMP" else 2)])
                if not idmp[1]:
                    raise CommandError(b"ERR syntax error, %b requires a non-empty producer ID" % word)
                if not idmp[-1]:
                    raise CommandError("ERR syntax error, IDMP requires a non-empty idempotent ID")
                at += len(idmp)
            elif adding:
                plain_id(words[at].removesuffix(b"-*") if words[at].endswith(b"-*") else words[at])
                if words[at].endswith(b"-*") and b"-" in words[at][:-2]:
                    raise CommandError(INVALID_ID)
                if idmp:
                    raise CommandError("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
                break
            else:
                raise CommandError(SYNTAX)
        if limit and not trim.strategy:
            raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
        if not adding and not trim.strategy:
            raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
        if limit is not None and not trim.approximate:
            raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")
        if trim.approximate:
            usual = 100 * self.node_max_entries
            trim.limit = limit if limit is not None else min(usual if usual > 0 else 10_000, 1_000_000)
        return trim, make, idmp, at

    def xadd(self, words: Words, now: int) -> bytes | None:
        trim, make, idmp, at = self.trim_options(words, adding=True)
        fields = words[at + 1 :]
        if not fields or len(fields) % 2:
            raise CommandError("ERR wrong number of arguments for 'xadd' command")
        asked = words[at]
        if asked != b"*" and not asked.endswith(b"-*") and plain_id(asked) == 0:
            raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
        if words[1] not in self.streams and not make:
            return None
        stream = self.streams.get(words[1]) or self.new_stream(**self.idmp_defaults)
        iid = None
        if idmp:
            iid = idmp[2] if len(idmp) == 3 else tuple(sorted(zip(fields[::2], fields[1::2], strict=True)))
            known = stream.producers.get(idmp[1], {}).get(iid)
            if known is not None:
                stream.iids_duplicates += 1
                return text(known)
        if stream.last_id == MAX_ID:
            raise CommandError(EXHAUSTED)
        last_ms, last_seq = stream.last_id >> 64, stream.last_id & MAX_HALF
        if asked == b"*":
            entry_id = now << 64 if now > last_ms else stream.last_id + 1
        elif asked.endswith(b"-*"):
            ms = plain_id(asked[:-2]) >> 64
            if ms == last_ms and last_seq == MAX_HALF:
                raise CommandError(SMALLER_THAN_TOP)
            entry_id = ms << 64 | (last_seq + 1 if ms == last_ms else 0)
        else:
            entry_id = plain_id(asked)
        if entry_id <= stream.last_id:
            raise CommandError(SMALLER_THAN_TOP)
        self.streams[words[1]] = stream
        stream.append(entry_id, fields, self.node_max_entries)
        if idmp:
            stream.remember(idmp[1], iid, entry_id)
        if trim.strategy:
            trim_stream(stream, trim)
        return text(entry_id)

    def xlen(self, words: Words, now: int) -> int:
        stream = self.streams.get(words[1])
        return len(stream.entries) if stream else 0

    def xtrim(self, words: Words, now: int) -> int:
        trim = self.trim_options(words, adding=False)[0]
        stream = self.streams.get(words[1])
        return trim_stream(stream, trim) if stream else 0

    def xdel(self, words: Words, now: int) -> int:
        stream = self.streams.get(words[1])
        return sum([stream.delete(entry_id) for entry_id in list(map(plain_id, words[2:]))]) if stream else 0

    def xdelex(self, words: Words, now: int) -> list[int]:
        references, given = ids_block(words[2:])
        stream = self.streams.get(words[1])
        if stream is None:
            return [-1] * len(given)
        answers = []
        for entry_id in list(map(plain_id, given)):
            if references == b"DELREF":
                stream.forget(entry_id)
            if references == b"ACKED" and stream.is_referenced(entry_id):
                answers.append(2)
            else:
                answers.append(1 if stream.delete(entry_id) else -1)
        return answers

    def xackdel(self, words: Words, now: int) -> list[int]:
        references, given = ids_block(words[3:])
        stream = self.streams.get(words[1])
        if stream is None or words[2] not in stream.groups:
            return [-1] * len(given)
        answers = []
        for entry_id in list(map(plain_id, given)):
            if stream.groups[words[2]].pel.pop(entry_id, None) is None:
                answers.append(-1)
                continue
            if references == b"DELREF":
                stream.forget(entry_id)
            if references == b"ACKED" and stream.is_referenced(entry_id):
                answers.append(2)
            else:
                stream.delete(entry_id)
                answers.append(1)
        return answers

    def check_xsetid(self, stream: Stream, last_id: int) -> None:
        if last_id < stream.max_deleted:
            raise CommandError("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")

    def xsetid(self, words: Words, now: int) -> Any:
        last_id, added, max_deleted = plain_id(words[2]), None, 0
        for at in range(3, len(words), 2):
            word = words[at].upper()
            if word == b"ENTRIESADDED" and at + 1 < len(words):
                added = number(words[at + 1])
                if added < 0:
                    raise CommandError("ERR entries_added must be positive")
            elif word == b"MAXDELETEDID" and at + 1 < len(words):
                max_deleted = plain_id(words[at + 1])
                if last_id < max_deleted:
                    raise CommandError(SMALLER_THAN_GIVEN)
            else:
                raise CommandError(SYNTAX)
        stream = self.streams.get(words[1])
        if stream is None:
            raise CommandError(NO_SUCH_KEY)
        self.check_xsetid(stream, last_id)
        if stream.entries:
            if last_id < stream.last_live:
                raise CommandError("ERR The ID specified in XSETID is smaller than the target stream top item")
            if added is not None and added < len(stream.entries):
                raise CommandError("ERR The entries_added specified in XSETID is smaller than the target stream length")
        stream.last_id = last_id
        stream.added = stream.added if added is None else added
        stream.max_deleted = max_deleted or stream.max_deleted
        return OK

    def xcfgset(self, words: Words, now: int) -> Any:
        stream = self.streams.get(words[1])
        if stream is None:
            raise CommandError(NO_SUCH_KEY)
        names = {
            b"IDMP-DURATION": ("idmp_duration", 86_400, "seconds"),
            b"IDMP-MAXSIZE": ("idmp_maxsize", 10_000, "entries"),
        }
        values: dict[str, int] = {}
        for at in range(2, len(words), 2):
            word = words[at].upper()
            if word not in names or at + 1 == len(words):
                raise CommandError(SYNTAX)
            name, most, unit = names[word]
            if name in values:
                raise CommandError(b"ERR %b specified multiple times" % word)
            values[name] = number(words[at + 1])
            if not 1 <= values[name] <= most:
                raise CommandError(f"ERR {word.decode()} must be between 1 and {most} {unit}")
        if not values:
            raise CommandError("ERR At least one parameter must be specified")
        for name, value in values.items():
            if getattr(stream, name) != value:
                setattr(stream, name, value)
                stream.producers.clear()
        return OK

    def xidmprecord(self, words: Words, now: int) -> Any:
        entry_id = plain_id(words[4])
        for word, what in ((words[2], "producer"), (words[3], "idempotent")):
            if not word:
                raise CommandError(f"ERR {what} ID must be non-empty")
        stream = self.streams.get(words[1])
        if stream is None:
            raise CommandError(NO_SUCH_KEY)
        if entry_id not in stream.entries:
            raise CommandError("ERR No such message in stream")
        known = stream.producers.get(words[2], {}).get(words[3])
        if known is None:
            stream.remember(words[2], words[3], entry_id)
        elif known != entry_id:
            raise CommandError("ERR IID already exists for this producer with a different stream ID")
        return OK

    # -- reading --

    def ranged(self, words: Words, start_word: bytes, end_word: bytes, *, backwards: bool) -> Any:
        start, end = edge_id(start_word, 0, at_start=True), edge_id(end_word, MAX_HALF, at_start=False)
        count = None
        for at in range(4, len(words), 2):
            if words[at].upper() != b"COUNT" or at + 1 == len(words):
                raise CommandError(SYNTAX)
            count = max(number(words[at + 1]), 0)
        stream = self.streams.get(words[1])
        if stream is None:
            return []
        if count == 0:
            return NULL_ARRAY
        found = [[text(entry_id), fields] for entry_id, fields in stream.entries.items() if start <= entry_id <= end]
        return (found[::-1] if backwards else found)[:count]

    def xrange(self, words: Words, now: int) -> Any:
        return self.ranged(words, words[2], words[3], backwards=False)

    def xrevrange(self, words: Words, now: int) -> Any:
        return self.ranged(words, words[3], words[2], backwards=True)

    def read_start(self, word: bytes, stream: Stream) -> int:
        if word == b"+":
            return max(stream.last_live - 1, 0)
        return stream.last_id if word == b"$" else plain_id(word)

    def xread(self, words: Words, now: int) -> Any:
        read = read_options(words, self.unbalanced_read)
        starts: list[tuple[bytes, int]] = []
        for key, word in read.pairs:
            stream = self.streams.get(key, Stream())
            if word == b">":
                raise CommandError(NEEDS_GROUP)
            starts.append((key, self.read_start(word, stream)))
        reply, emitted = [], 0
        for key, start in starts:
            stream = self.streams.get(key, Stream())
            found = [[text(entry_id), fields] for entry_id, fields in stream.entries.items() if entry_id > start]
            if found and not (read.maxcount and emitted >= read.maxcount):
                reply.append([key, found[: read.room(emitted)]])
                emitted += len(reply[-1][1])
        return reply or NULL_ARRAY

    def xreadgroup(self, words: Words, now: int) -> Any:
        read = read_options(words, self.unbalanced_group_read)
        assert read.group is not None
        work: list[tuple[bytes, Stream, Group, int]] = []
        for key, word in read.pairs:
            found = self.group_or_error(key, read.group, b" in XREADGROUP with GROUP option")
            if word in self.meaningless:
                raise CommandError(MEANINGLESS % (word.decode(), word.decode()))
            work.append((key, *found, MAX_ID if word == b">" else plain_id(word)))
        reply, emitted, claim = [], 0, read.claim
        for key, stream, group, start in work:
            consumer = self.touch(group, read.consumer, now)
            if read.maxcount and emitted >= read.maxcount:
                continue
            room = read.room(emitted)
            if start != MAX_ID:
                claim = None
                messages = self.history(key, group, read.consumer, start, room, now)
            else:
                messages = []
                if claim is not None:
                    messages = self.overdue(key, group, read.consumer, claim, room, now)
                    room = None if room is None else room - len(messages)
                fresh = [entry_id for entry_id in stream.entries if entry_id > group.last_id][:room]
                for entry_id in fresh:
                    stream.advance(group, entry_id)
                    if not read.no_ack:
                        group.assign(entry_id, read.consumer, now, 1)
                    messages.append([text(entry_id), stream.entries[entry_id], *([] if claim is None else [0, 0])])
                if len(messages) > (len(fresh) if read.no_ack else 0):
                    consumer.active = now
                if not messages:
                    continue
            reply.append([key, messages])
            emitted += len(messages)
        return reply or NULL_ARRAY

    def history(self, key: bytes, group: Group, name: bytes, start: int, room: int | None, now: int) -> list[list[Any]]:
        entries, messages = self.streams[key].entries, list[list[Any]]()
        for entry_id in [entry_id for entry_id in group.owned(name) if entry_id > start]:
            if len(messages) == room:
                break
            if entry_id in entries:
                count = min(group.pel[entry_id].count + 1, INT64_MAX)
                if self.wears_out(key, group, entry_id, count, now):
                    continue
                group.assign(entry_id, name, now, count)
            messages.append([text(entry_id), entries.get(entry_id, NULL_ARRAY)])
        return messages

    def overdue(
        self, key: bytes, group: Group, name: bytes, min_idle: int, room: int | None, now: int
    ) -> list[list[Any]]:
        """CLAIM: what has waited for `min_idle`, longest first."""
        entries, messages = self.streams[key].entries, list[list[Any]]()
        for entry_id in group.by_time():
            pending = group.pel[entry_id]
            idle = now - pending.time
            if (pending.owner is not None and 0 <= idle < min_idle) or len(messages) == room:
                break
            count = min(pending.count + 1, INT64_MAX)
            if entry_id in entries and not self.wears_out(key, group, entry_id, count, now):
                messages.append([text(entry_id), entries[entry_id], idle, pending.count])
                group.assign(entry_id, name, now, count)
        return messages

    # -- pending entries --

    def xack(self, words: Words, now: int) -> int:
        stream = self.streams.get(words[1])
        if stream is None or words[2] not in stream.groups:
            return 0
        pel = stream.groups[words[2]].pel
        return sum([pel.pop(entry_id, None) is not None for entry_id in list(map(plain_id, words[3:]))])

    def xnack(self, words: Words, now: int) -> int:
        stream, group = self.group_or_error(words[1], words[2])
        mode = words[3].upper()
        if mode not in (b"SILENT", b"FAIL", b"FATAL"):
            raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
        given, count, force, at = None, None, False, 4
        while at < len(words):
            word, more = words[at].upper(), len(words) - at - 1
            if word == b"IDS" and more:
                wanted = number(words[at + 1], "ERR numids must be a positive integer")
                if wanted <= 0:
                    raise CommandError("ERR numids must be a positive integer")
                if wanted > more - 1:
                    raise CommandError("ERR number of IDs doesn't match numids")
                given, at = words[at + 2 : at + 2 + wanted], at + 2 + wanted
            elif word == b"RETRYCOUNT" and more:
                count, at = number(words[at + 1]), at + 2
                if count < 0:
                    raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
            elif word == b"FORCE":
                force, at = True, at + 1
            else:
                raise CommandError(b"ERR Unrecognized XNACK option '%b'" % words[at])
        if given is None:
            raise CommandError("ERR syntax error, expected IDS keyword")
        done = 0
        for entry_id in list(map(plain_id, given)):
            if entry_id in group.pel or (force and entry_id in stream.entries):
                old = group.pel[entry_id].count if entry_id in group.pel else 0
                new = {b"SILENT": max(old - 1, 0), b"FAIL": old, b"FATAL": INT64_MAX}[mode]
                group.assign(entry_id, None, 0, new if count is None else count)
                done += 1
        return done

    def xpending(self, words: Words, now: int) -> Any:
        if len(words) == 3:
            group = self.group_or_error(words[1], words[2])[1]
            if not group.pel:
                return [0, None, None, NULL_ARRAY]
            counts = [[name, b"%d" % len(group.owned(name))] for name in sorted(group.consumers) if group.owned(name)]
            return [len(group.pel), text(min(group.pel)), text(max(group.pel)), counts]
        if not 6 <= len(words) <= 9:
            raise CommandError(SYNTAX)
        min_idle, at = 0, 3
        if words[3].upper() == b"IDLE":
            min_idle, at = number(words[4]), 5
            if len(words) < 8:
                raise CommandError(SYNTAX)
        count = max(number(words[at + 2]), 0)
        start = edge_id(words[at], 0, at_start=True)
        end = edge_id(words[at + 1], MAX_HALF, at_start=False)
        group = self.group_or_error(words[1], words[2])[1]
        rows = []
        for entry_id, pending in sorted(group.pel.items()):
            idle = -1 if pending.owner is None else max(now - pending.time, 0)
            wanted = start <= entry_id <= end and (words[at + 3 :] == [] or pending.owner == words[at + 3])
            if wanted and (pending.owner is None or min_idle <= 0 or idle >= min_idle):
                rows.append([text(entry_id), pending.owner or b"", idle, pending.count])
        return rows[:count]

    def claim_one(self, group: Group, name: bytes, entry_id: int, time: int, count: int, now: int) -> None:
        group.assign(entry_id, name, time, count)
        group.consumers[name].active = now

    def xclaim(self, words: Words, now: int) -> list[Any]:
        stream, group = self.group_or_error(words[1], words[2])
        min_idle = max(number(words[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0)
        entry_ids, at = [], 5
        while at < len(words):  # IDs up to the first word that is none
            try:
                entry_ids.append(plain_id(words[at]))
            except CommandError:
                break
            at += 1
        time, count, last_id, force, just_id = now, None, 0, False, False
        while at < len(words):
            word, more = words[at].upper(), len(words) - at - 1
            if word in (b"FORCE", b"JUSTID"):
                force, just_id, at = force or word == b"FORCE", just_id or word == b"JUSTID", at + 1
                continue
            if word not in (b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID") or not more:
                raise CommandError(b"ERR Unrecognized XCLAIM option '%b'" % words[at])
            if word == b"LASTID":
                last_id = plain_id(words[at + 1])
            else:
                value = number(words[at + 1], f"ERR Invalid {word.decode()} option argument for XCLAIM")
                if word == b"RETRYCOUNT":
                    count = value if value >= 0 else None
                else:
                    time = now - value if word == b"IDLE" else value
            at += 2
        group.last_id = max(group.last_id, last_id)
        time = time if 0 <= time <= now else now
        self.touch(group, words[3], now)
        claimed: list[Any] = []
        seen: set[int] = set()  # of an ID that is given twice the second one neither moves nor exceeds anything
        moved: set[int] = set()
        for entry_id in entry_ids:
            if entry_id not in stream.entries:
                group.pel.pop(entry_id, None)
                continue
            if entry_id in moved:
                continue
            is_new = entry_id not in group.pel
            if is_new:
                if not force:
                    continue
                group.assign(entry_id, words[3], now, 1)
            elif group.pel[entry_id].owner is not None and min_idle and now - group.pel[entry_id].time < min_idle:
                continue
            new = min(group.pel[entry_id].count + (not just_id), INT64_MAX) if count is None else count
            if entry_id in seen and not just_id and self.is_too_often(words[1], group.policy, new):
                continue
            if not just_id and not is_new and self.wears_out(words[1], group, entry_id, new, now):
                moved.add(entry_id)
                continue
            seen.add(entry_id)
            self.claim_one(group, words[3], entry_id, time, new, now)
            claimed.append(text(entry_id) if just_id else [text(entry_id), stream.entries[entry_id]])
        return claimed

    def xautoclaim(self, words: Words, now: int) -> list[Any]:
        min_idle = max(number(words[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
        start, count, just_id, at = edge_id(words[5], 0, at_start=True), 100, False, 6
        while at < len(words):
            if words[at].upper() == b"COUNT" and at + 1 < len(words):
                count, at = number(words[at + 1], "ERR COUNT must be > 0"), at + 2
                if not 0 < count < 1 << 59:
                    raise CommandError("ERR COUNT must be > 0")
            elif words[at].upper() == b"JUSTID":
                just_id, at = True, at + 1
            else:
                raise CommandError(SYNTAX)
        stream, group = self.group_or_error(words[1], words[2])
        self.touch(group, words[3], now)
        claimed: list[Any] = []
        deleted: list[bytes] = []
        moved = 0
        ahead = [entry_id for entry_id in sorted(group.pel) if entry_id >= start]
        for examined, entry_id in enumerate(ahead):
            if examined == count * 10 or len(claimed) + len(deleted) + moved == count:
                return [text(entry_id), claimed, deleted]
            if entry_id not in stream.entries:
                del group.pel[entry_id]
                deleted.append(text(entry_id))
            elif group.pel[entry_id].owner is None or not min_idle or now - group.pel[entry_id].time >= min_idle:
                new = min(group.pel[entry_id].count + (not just_id), INT64_MAX)
                if not just_id and self.wears_out(words[1], group, entry_id, new, now):
                    moved += 1
                    continue
                self.claim_one(group, words[3], entry_id, now, new, now)
                claimed.append(text(entry_id) if just_id else [text(entry_id), stream.entries[entry_id]])
        return [text(0), claimed, deleted]

    # -- groups --

    def group_for(self, words: Words) -> tuple[Stream, Group | None]:
        """What XGROUP finds before it starts, apart from CREATE MKSTREAM."""
        stream = self.streams.get(words[2])
        if stream is None:
            raise CommandError(KEY_REQUIRED)
        if words[3] not in stream.groups and words[1].upper() not in (b"CREATE", b"DESTROY"):
            raise CommandError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (words[3], words[2]))
        return stream, stream.groups.get(words[3])

    def group_options(self, words: Words) -> tuple[bool, int | None]:
        make, entries_read, at = False, None, 5
        while at < len(words):
            word = words[at].upper()
            if word == b"MKSTREAM" and words[1].upper() == b"CREATE":
                make, at = True, at + 1
            elif word == b"ENTRIESREAD" and at + 1 < len(words):
                value, at = number(words[at + 1]), at + 2
                if value < -1:
                    raise CommandError("ERR value for ENTRIESREAD must be positive or -1")
                entries_read = None if value == -1 else value
            else:
                raise self.group_syntax(words)
        return make, entries_read

    def group_syntax(self, words: Words) -> CommandError:
        return CommandError(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try %b HELP."
            % (words[1][:128], words[0].upper())
        )

    def clamp(self, entries_read: int | None, stream: Stream) -> int | None:
        return entries_read if entries_read is None else min(entries_read, stream.added)

    def xgroup_create(self, words: Words, now: int) -> Any:
        make, entries_read = self.group_options(words)
        if not make:
            self.group_for(words)
        if len(words) > 8:
            raise self.group_syntax(words)
        stream = self.streams.get(words[2]) or self.new_stream(**self.idmp_defaults)
        last_id = stream.last_id if words[4] == b"$" else plain_id(words[4])
        self.streams[words[2]] = stream
        if words[3] in stream.groups:
            raise CommandError("BUSYGROUP Consumer Group name already exists")
        stream.groups[words[3]] = Group(last_id, self.clamp(entries_read, stream))
        return OK

    def xgroup_setid(self, words: Words, now: int) -> Any:
        entries_read = self.group_options(words)[1]
        stream, group = self.group_for(words)
        assert group is not None
        if len(words) not in (5, 7):
            raise self.group_syntax(words)
        special = {b"$": stream.last_id, b"-": 0, b"+": MAX_ID}
        group.last_id = special[words[4]] if words[4] in special else plain_id(words[4])
        group.entries_read = self.clamp(entries_read, stream)
        return OK

    def xgroup_destroy(self, words: Words, now: int) -> int:
        return int(self.group_for(words)[0].groups.pop(words[3], None) is not None)

    def xgroup_createconsumer(self, words: Words, now: int) -> int:
        group = self.group_for(words)[1]
        assert group is not None
        if words[4] in group.consumers:
            return 0
        self.touch(group, words[4], now)
        return 1

    def xgroup_delconsumer(self, words: Words, now: int) -> int:
        group = self.group_for(words)[1]
        assert group is not None
        if group.consumers.pop(words[4], None) is None:
            return 0
        lost = group.owned(words[4])
        for entry_id in lost:
            del group.pel[entry_id]
        return len(lost)

    def limit(self, word: bytes, option: str) -> int:
        error = f"ERR {option} must be a positive integer, or 0 or OFF for none"
        value = 0 if word.upper() == b"OFF" else number(word, error)
        if value < 0:
            raise CommandError(error)
        return value

    def xgroup_policy(self, words: Words, now: int) -> Any:
        given = {option.upper(): value for option, value in zip(words[4::2], words[5::2], strict=False)}
        if len(words) % 2 or not given.keys() <= {b"MAXDELIVERIES", b"DEADLETTER", b"CONSUMERTTL"}:
            raise self.group_syntax(words)
        group = self.group_for(words)[1]
        assert group is not None
        old = group.policy
        if not given:
            names = (b"max-deliveries", b"dead-letter", b"consumer-ttl")
            return dict(zip(names, (old.max_deliveries, old.dead_letter, old.consumer_ttl), strict=True))
        most, ttl = old.max_deliveries, old.consumer_ttl
        if b"MAXDELIVERIES" in given:
            most = self.limit(given[b"MAXDELIVERIES"], "MAXDELIVERIES")
        if b"CONSUMERTTL" in given:
            ttl = self.limit(given[b"CONSUMERTTL"], "CONSUMERTTL")
        dead_letter = given.get(b"DEADLETTER", old.dead_letter) if most else None
        if not most and b"DEADLETTER" in given:
            raise CommandError("ERR DEADLETTER needs MAXDELIVERIES, which says when an entry goes there")
        if most and dead_letter is None:
            raise CommandError("ERR MAXDELIVERIES needs a DEADLETTER key, to which it moves entries")
        if given.get(b"DEADLETTER") == words[2]:
            raise CommandError("ERR the DEADLETTER key must be another one than the stream's own")
        group.policy = Policy(most, dead_letter, ttl)
        return OK

    # -- looking --

    def stream_or_error(self, key: bytes) -> Stream:
        if key not in self.streams:
            raise CommandError(NO_SUCH_KEY)
        return self.streams[key]

    def xinfo_groups(self, words: Words, now: int) -> list[dict[bytes, Any]]:
        stream = self.stream_or_error(words[2])
        return [
            {
                b"name": name,
                b"consumers": len(group.consumers),
                b"pending": len(group.pel),
                b"last-delivered-id": text(group.last_id),
                b"entries-read": group.entries_read,
                b"lag": stream.lag(group),
            }
            for name, group in sorted(stream.groups.items())
        ]

    def xinfo_consumers(self, words: Words, now: int) -> list[dict[bytes, Any]]:
        stream = self.stream_or_error(words[2])
        if words[3] not in stream.groups:
            raise CommandError(b"NOGROUP No such consumer group '%b' for key name '%b'" % (words[3], words[2]))
        group = stream.groups[words[3]]
        return [
            {
                b"name": name,
                b"pending": len(group.owned(name)),
                b"idle": max(now - consumer.seen, 0),
                b"inactive": NEVER if consumer.active == NEVER else max(now - consumer.active, 0),
            }
            for name, consumer in sorted(group.consumers.items())
        ]

    def xinfo_stream(self, words: Words, now: int) -> dict[bytes, Any]:
        stream = self.stream_or_error(words[2])
        options = [word.upper() for word in words[3:]]
        count = 10
        if options:
            if options[0] != b"FULL" or len(options) not in (1, 3) or options[1:2] not in ([], [b"COUNT"]):
                raise self.group_syntax(words)
            count = number(words[5]) if len(options) == 3 else 10
            count = 10 if count < 0 else count
        info: dict[bytes, Any] = {
            b"length": len(stream.entries),
            b"radix-tree-keys": len(stream.nodes),
            b"radix-tree-nodes": len(stream.nodes) + 1,
            b"last-generated-id": text(stream.last_id),
            b"max-deleted-entry-id": text(stream.max_deleted),
            b"entries-added": stream.added,
            b"recorded-first-entry-id": text(stream.first_id),
            b"idmp-duration": stream.idmp_duration,
            b"idmp-maxsize": stream.idmp_maxsize,
            b"pids-tracked": len(stream.producers),
            b"iids-tracked": sum(map(len, stream.producers.values())),
            b"iids-added": stream.iids_added,
            b"iids-duplicates": stream.iids_duplicates,
        }
        entries = [[text(entry_id), fields] for entry_id, fields in stream.entries.items()]
        if not options:
            first, last = (entries[0], entries[-1]) if entries else (None, None)
            return info | {b"groups": len(stream.groups), b"first-entry": first, b"last-entry": last}
        groups = [self.full_group(stream, name, count or None) for name in sorted(stream.groups)]
        return info | {b"entries": entries[: count or None], b"groups": groups}

    def full_group(self, stream: Stream, name: bytes, count: int | None) -> dict[bytes, Any]:
        group = stream.groups[name]
        consumers = []
        for consumer_name, consumer in sorted(group.consumers.items()):
            own = group.owned(consumer_name)
            consumers.append(
                {
                    b"name": consumer_name,
                    b"seen-time": consumer.seen,
                    b"active-time": consumer.active,
                    b"pel-count": len(own),
                    b"pending": [[text(at), group.pel[at].time, group.pel[at].count] for at in own[:count]],
                }
            )
        pel = sorted(group.pel.items())[:count]
        return {
            b"name": name,
            b"last-delivered-id": text(group.last_id),
            b"entries-read": group.entries_read,
            b"lag": stream.lag(group),
            b"pel-count": len(group.pel),
            b"nacked-count": len(group.owned(None)),
            b"pending": [[text(at), pending.owner or b"", pending.time, pending.count] for at, pending in pel],
            b"consumers": consumers,
        }
