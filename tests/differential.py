"""Run one script on two servers and compare every byte of every reply.

Two kinds of bytes may differ, and both are written down here by name.  `MASKS` are numbers that come from a clock or
from chance: two copies of the same server differ in them as well, and `test_against_redis.py` holds the masks to that.
`DIFFERENCES` are where we answer as a newer Redis does, or where Redis 7.0.15 shows its insides; each carries a
demonstration, so that an entry which is no longer true fails a test.

A mismatch is shrunk by leaving out commands for as long as the two still disagree, and printed as a script to replay.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from tests.generators import CONNECTIONS, FAR_SECONDS, Step
from tests.raw import Node, RawClient, Word, encode_word, parse, quote
from tests.servers import Server

# In a script: kill the second server and start it again.  All connections begin anew, on both servers.
KILL_STEP: Final = Step(-1, (b"KILL",))

Words = tuple[bytes, ...]
Change = Callable[[Words, Node], Node]

# -- what may differ ---------------------------------------------------------------------------------------------------

# Milliseconds of our century: explicit ids in scripts are short or near 2^64.
_CLOCK_ID = re.compile(rb"\b[1-9]\d{12}-\d+\b")


def _names(*names: bytes) -> Callable[[Words], bool]:
    return lambda words: words[0].upper() in names


def _sort_key(node: Node) -> tuple[str, bytes]:
    return node.kind, node.text


def _mask_clock_ids(words: Words, node: Node) -> Node:
    return node.map_leaves(lambda leaf: Node(leaf.kind, _CLOCK_ID.sub(b"<now>", leaf.text)))


def _mask_positive(words: Words, node: Node) -> Node:
    return Node(":", b"<number>") if node.kind == ":" and not node.text.startswith(b"-") else node


def _mask_lifetime(words: Words, node: Node) -> Node:
    """Deadlines asked for as such (the year 2100) compare exactly when they are read as such."""
    if node.kind != ":" or node.text.startswith(b"-"):
        return node
    milliseconds = words[0].upper().startswith(b"P")
    seconds = int(node.text) // 1000 if milliseconds else int(node.text)
    absolute = words[0].upper().endswith(b"EXPIRETIME")
    if absolute and seconds >= FAR_SECONDS:
        return node
    return Node(":", b"<lifetime>")


def _mask_order(words: Words, node: Node) -> Node:
    return node if node.children is None else node.with_children(sorted(node.children, key=_sort_key))


def _mask_scan(words: Words, node: Node) -> Node:
    """A scan that sees everything in one call: its keys, in any order.  One that may stop early: only its form."""
    if node.children is None or len(node.children) != 2:
        return node
    cursor, keys = node.children
    upper = [word.upper() for word in words]
    count = words[len(upper) - 1 - upper[::-1].index(b"COUNT") + 1] if b"COUNT" in upper[:-1] else b"10"
    if words[1] == b"0" and count.isdigit() and int(count) >= 1000:
        return node.with_children((cursor, _mask_order(words, keys)))
    return node.with_children((Node("$", b"<cursor>"), Node(keys.kind, b"<some keys>")))


def _mask_hello(words: Words, node: Node) -> Node:
    if node.children is None:
        return node
    kept = (b"proto", b"mode", b"role", b"modules")
    pairs = [(name, value) for name, value in node.pairs() if name.text in kept]
    return Node(node.kind, b"", tuple(itertools.chain.from_iterable(pairs)))


def _mask_random_key(words: Words, node: Node) -> Node:
    return Node("$", b"<some key>") if node.kind == "$" else node


@dataclass(frozen=True)
class Rule:
    """One named exception from byte equality: for which commands, why, and what is compared instead."""

    reason: str
    applies: Callable[[Words], bool]
    change: Change


MASKS: Final[dict[str, Rule]] = {
    "ids made from the clock": Rule(
        "XADD * takes the time at which it ran, and other replies show that id later",
        lambda words: True,
        _mask_clock_ids,
    ),
    "time left": Rule(
        "a relative lifetime is counted from the time at which it was set",
        _names(b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME"),
        _mask_lifetime,
    ),
    "order of keys": Rule("KEYS promises no order", _names(b"KEYS"), _mask_order),
    "scan": Rule(
        "SCAN promises no order, and how much one call returns is only asked for", _names(b"SCAN"), _mask_scan
    ),
    "a random key": Rule("RANDOMKEY", _names(b"RANDOMKEY"), _mask_random_key),
    "idle time": Rule(
        "OBJECT IDLETIME counts seconds since the last access",
        lambda words: words[0].upper() == b"OBJECT" and len(words) > 1 and words[1].upper() == b"IDLETIME",
        _mask_positive,
    ),
    "hello": Rule(
        "HELLO names the server, its version and the number of the connection", _names(b"HELLO"), _mask_hello
    ),
}


def _unchanged(words: Words, node: Node) -> Node:
    return node


@dataclass(frozen=True, kw_only=True)
class Difference(Rule):
    """A rule for what is different on purpose.

    `demonstration` ends with a command whose replies do differ.  `excuses` looks at our reply: when it says yes, Redis
    may have answered anything.  After a difference that `changes_state` the key is deleted on both servers.
    """

    change: Change = _unchanged
    demonstration: tuple[tuple[Word, ...], ...]
    excuses: Callable[[Words, Node], bool] = lambda words, ours: False
    changes_state: bool = False


def _is_xinfo_stream(words: Words) -> bool:
    return words[0].upper() == b"XINFO" and len(words) > 2 and words[1].upper() == b"STREAM"


def _without_pairs(names: frozenset[bytes]) -> Change:
    def change(words: Words, node: Node) -> Node:
        if node.children is None:
            return node
        kept = [pair for pair in node.pairs() if pair[0].text not in names]
        return Node(node.kind, b"", tuple(itertools.chain.from_iterable(kept)))

    return change


def _any_tree_nodes(words: Words, node: Node) -> Node:
    if node.children is None:
        return node
    pairs = [
        (name, Node(":", b"<some>") if name.text == b"radix-tree-nodes" else value) for name, value in node.pairs()
    ]
    return Node(node.kind, node.text, tuple(itertools.chain.from_iterable(pairs)))


def _reads_plus(words: Words) -> bool:
    return words[0].upper() == b"XREAD" and b"+" in words


_UNBALANCED = re.compile(rb"ERR Unbalanced .*")


def _any_unbalanced(words: Words, node: Node) -> Node:
    return Node(node.kind, _UNBALANCED.sub(b"ERR Unbalanced", node.text)) if node.kind == "-" else node


def _is_below_deleted(words: Words, ours: Node) -> bool:
    return ours.text == b"ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"


def _without_stale_errno(words: Words, node: Node) -> Node:
    not_greater = b"ERR The ID specified in XADD is equal or smaller than the target stream top item"
    return Node("-", not_greater) if node.text == b"ERR Elements are too large to be stored" else node


def _last_help_line(words: Words, node: Node) -> Node:
    return node.map_leaves(lambda leaf: Node(leaf.kind, leaf.text.replace(b"Prints this help", b"Print this help")))


def _is_help(container: bytes) -> Callable[[Words], bool]:
    return lambda words: words[0].upper() == container and len(words) == 2 and words[1].upper() == b"HELP"


IDMP_FIELDS: Final = frozenset(
    (b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates")
)

DIFFERENCES: Final[dict[str, Difference]] = {
    "XINFO STREAM tells about idempotent production": Difference(
        reason="six more pairs since Redis 8.6",
        applies=_is_xinfo_stream,
        change=_without_pairs(IDMP_FIELDS),
        demonstration=(("XADD", "k", "1-1", "f", "v"), ("XINFO", "STREAM", "k")),
    ),
    "radix-tree-nodes": Difference(
        reason="Redis counts the inner nodes of a tree that we do not have; radix-tree-keys are compared",
        applies=_is_xinfo_stream,
        change=_any_tree_nodes,
        demonstration=(
            ("XADD", "k", "1-1", "f", "v"),
            *(("XADD", "k", f"{2**exponent}-1", "f", "v") for exponent in range(1, 64)),
            ("XINFO", "STREAM", "k"),
        ),
    ),
    "MEMORY USAGE": Difference(
        reason="an estimate of what a key takes, of two very different stores",
        applies=lambda words: words[0].upper() == b"MEMORY" and len(words) > 1 and words[1].upper() == b"USAGE",
        change=_mask_positive,
        demonstration=(("XADD", "k", "1-1", "f", "v"), ("MEMORY", "USAGE", "k")),
    ),
    "XREAD +": Difference(
        reason="the last entry, since Redis 7.4; 7.0 calls it a bad id",
        applies=_reads_plus,
        excuses=lambda words, ours: True,
        demonstration=(("XADD", "k", "1-1", "f", "v"), ("XREAD", "STREAMS", "k", "+")),
    ),
    "unbalanced XREAD": Difference(
        reason="the text names the command and `+` since Redis 7.4",
        applies=_names(b"XREAD", b"XREADGROUP"),
        change=_any_unbalanced,
        demonstration=(("XREAD", "STREAMS", "a", "b", "1"),),
    ),
    "XADD ms-* when the sequence numbers are used up": Difference(
        reason="7.0 chooses between two texts by whatever the last failed system or library call left in errno",
        applies=_names(b"XADD"),
        change=_without_stale_errno,
        demonstration=(
            ("XADD", "k", "5-18446744073709551615", "f", "v"),
            ("XADD", "k", "99999999999999999999", "f", "v"),
            ("XADD", "k", "5-*", "f", "v"),
        ),
    ),
    "XSETID below the highest deleted id": Difference(
        reason="refused since Redis 7.2, and before other faults are looked for; 7.0 does not look at deleted ids",
        applies=_names(b"XSETID"),
        excuses=_is_below_deleted,
        demonstration=(
            ("XADD", "k", "1-1", "f", "v"),
            ("XADD", "k", "5-1", "f", "v"),
            ("XDEL", "k", "5-1"),
            ("XSETID", "k", "2-1"),
        ),
        changes_state=True,
    ),
    "XINFO HELP": Difference(
        reason="`Print` instead of `Prints`, since Redis 7.2",
        applies=_is_help(b"XINFO"),
        change=_last_help_line,
        demonstration=(("XINFO", "HELP"),),
    ),
    "OBJECT HELP": Difference(
        reason="says what the subcommands do here, where every value is a stream",
        applies=_is_help(b"OBJECT"),
        excuses=lambda words, ours: ours.children is not None,
        demonstration=(("OBJECT", "HELP"),),
    ),
}


def normalise(words: Words, node: Node, rules: Sequence[Rule]) -> Node:
    for rule in rules:
        if rule.applies(words):
            node = rule.change(words, node)
    return node


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mismatch:
    """Where two servers disagree: the step's number, its words and what each replied (None: no reply at all)."""

    number: int
    words: Words
    replies: tuple[bytes | None, bytes | None]
    names: tuple[str, str]

    def __str__(self) -> str:
        lines = [f"at command {self.number}: {' '.join(map(quote, self.words))}"]
        for name, reply in zip(self.names, self.replies, strict=True):
            lines.append(f"  {name:16} {'(no reply)' if reply is None else repr(reply[:1500])}")
        if None not in self.replies:
            nodes = [parse(reply) for reply in self.replies if reply is not None]
            lines.append(f"  first difference: {_first_difference(nodes[0], nodes[1])}")
        return "\n".join(lines)


def _first_difference(one: Node, other: Node) -> str:
    """The smallest part in which two replies differ, for people."""
    if one.children is not None and other.children is not None and one.kind == other.kind:
        last = None
        for mine, theirs in zip(one.children, other.children, strict=False):
            if mine != theirs:
                return (f"after {last}: " if last is not None else "") + _first_difference(mine, theirs)
            last = mine
    return f"{str(one)[:300]} against {str(other)[:300]}"


@dataclass
class _Lane:
    """One connection number: its socket on each server, and the words queued since MULTI."""

    clients: tuple[RawClient, RawClient]
    queued: list[Words] | None = None
    repair: list[Words] = field(default_factory=list)


def _expect_ok(server: Server, reply: bytes) -> None:
    assert reply.startswith((b"+", b":")), f"{server.name}: {reply!r}"


class Pair:
    """Two servers that get the same script.  `protocols` are what each connection number speaks."""

    def __init__(self, first: Server, second: Server, *, rules: Sequence[Rule] | None = None) -> None:
        self.servers = (first, second)
        self.rules = tuple(MASKS.values()) + tuple(DIFFERENCES.values()) if rules is None else tuple(rules)
        self.commands_run = 0

    def reset(self, node_entries: int) -> None:
        """Empty both stores and give them the same stream nodes, on which `~` depends."""
        for server in self.servers:
            if server.process is None or server.process.poll() is not None:
                server.kill()  # the last script ended it; the next one, perhaps a shorter one, shall find it running
                server.start()
            with server.client() as client:
                for words in (
                    ("FLUSHALL",),
                    ("CONFIG", "SET", "stream-node-max-bytes", 0),
                    ("CONFIG", "SET", "stream-node-max-entries", node_entries),
                ):
                    _expect_ok(server, client.ask(*words))

    def run(
        self, script: Sequence[Step], *, node_entries: int = 5, protocols: Sequence[int] = (2, 3, 2)
    ) -> Mismatch | None:
        """Run the script on empty stores; the first step on which the replies differ, or None.

        Steps in a row on one connection are pipelined.  Ends by comparing everything that is stored.
        """
        self.reset(node_entries)
        stack = ExitStack()
        try:
            lanes = self._connect(stack)
            if mismatch := self._greet(lanes, protocols):
                return mismatch
            for number, connection, batch in _batches(script):
                if connection == KILL_STEP.connection:
                    stack.close()
                    self._kill_second()
                    lanes = self._connect(stack)
                    mismatch = self._greet(lanes, protocols)
                else:
                    mismatch = self._run_batch(lanes[connection], number, batch)
                if mismatch is not None:
                    return mismatch
            stack.close()
            return self._compare_stores(self._connect(stack)[0], len(script))
        finally:
            stack.close()

    def _connect(self, stack: ExitStack) -> list[_Lane]:
        lanes = []
        for _ in range(CONNECTIONS):
            one, other = (stack.enter_context(server.client(timeout_s=20)) for server in self.servers)
            lanes.append(_Lane((one, other)))
        return lanes

    def _greet(self, lanes: Sequence[_Lane], protocols: Sequence[int]) -> Mismatch | None:
        for lane, protocol in zip(lanes, protocols, strict=True):
            if protocol == 3 and (mismatch := self._run_batch(lane, -1, [(b"HELLO", b"3")])):
                return mismatch
        return None

    def _kill_second(self) -> None:
        """SIGKILL our server and start it again; the other one goes on, and only its connections end.

        The settings of stream nodes are given at the start: the log's tail is executed before anybody could set them.
        """
        ours = self.servers[1]
        settings = ("stream-node-max-entries", "stream-node-max-bytes")
        with ours.client() as client:
            for name in settings:
                ours.options[name] = (client.tree("CONFIG", "GET", name).children or ())[1].text.decode()
        ours.kill()
        ours.start()
        for name in settings:
            del ours.options[name]

    def _run_batch(self, lane: _Lane, number: int, batch: Sequence[Words]) -> Mismatch | None:
        for client in lane.clients:
            try:
                client.send_bytes(b"".join(_encoded(words) for words in batch))
            except ConnectionError:
                pass  # reading its reply tells which one
        for offset, words in enumerate(batch):
            replies = (_reply(lane.clients[0]), _reply(lane.clients[1]))
            self.commands_run += 1
            if not self._agree(lane, words, replies):
                return Mismatch(number + offset, words, replies, (self.servers[0].name, self.servers[1].name))
        return self._repair(lane, number)

    def _agree(self, lane: _Lane, words: Words, replies: tuple[bytes | None, bytes | None]) -> bool:
        """Whether the replies to `words` are the same up to the rules; follows MULTI and EXEC on the way."""
        first, second = replies
        if first is None or second is None:
            return first is second
        name = words[0].upper()
        executed = lane.queued
        if first == b"+QUEUED\r\n" and lane.queued is not None:
            lane.queued.append(words)
        elif name == b"MULTI" and first == b"+OK\r\n":
            lane.queued = []
        elif name in (b"EXEC", b"DISCARD", b"RESET") and not first.startswith(b"-ERR"):
            lane.queued = None
        if first == second:
            return True
        nodes = (parse(first), parse(second))
        if name == b"EXEC" and executed is not None and all(node.children is not None for node in nodes):
            return self._same_results(lane, executed, *nodes)
        return self._same(lane, words, *nodes)

    def _same_results(self, lane: _Lane, executed: Sequence[Words], one: Node, other: Node) -> bool:
        """The results of a transaction, each by the rules of its own command."""
        if one.children is None or other.children is None or len(one.children) != len(other.children):
            return False
        for words, mine, theirs in zip(executed, one.children, other.children, strict=True):
            if not self._same(lane, words, mine, theirs):
                return False
            if lane.repair:  # the rest of the transaction ran on different states
                lane.repair = [(b"FLUSHALL",)]
                return True
        return True

    def _same(self, lane: _Lane, words: Words, one: Node, other: Node) -> bool:
        if one == other:
            return True
        differences = [rule for rule in self.rules if isinstance(rule, Difference) and rule.applies(words)]
        excuse = next((rule for rule in differences if rule.excuses(words, other)), None)
        if excuse is not None and excuse.changes_state:
            # Which of the two did it does not matter: afterwards the key is gone on both.
            lane.repair = [(b"DEL", words[1])]
        return excuse is not None or normalise(words, one, self.rules) == normalise(words, other, self.rules)

    def _repair(self, lane: _Lane, number: int) -> Mismatch | None:
        """Undo a named difference in the state, so that the rest of the script can be compared."""
        commands, lane.repair = lane.repair, []
        return self._run_batch(lane, number, commands) if commands else None

    def _compare_stores(self, lane: _Lane, number: int) -> Mismatch | None:
        for database in (b"0", b"1", b"2"):
            if mismatch := self._run_batch(lane, number, [(b"SELECT", database), (b"KEYS", b"*")]):
                return mismatch
            keys = parse(lane.clients[0].ask("KEYS", "*")).children or ()
            looks: list[Words] = []
            for key in sorted(node.text for node in keys):
                looks.append((b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"))
                looks.append((b"PEXPIRETIME", key))
            if mismatch := self._run_batch(lane, number, looks):
                return mismatch
        return None


def _encoded(words: Words) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _reply(client: RawClient) -> bytes | None:
    try:
        return client.reply()
    except (ConnectionError, TimeoutError):
        return None


# After these nothing may follow in the same pipeline: a difference that changes state is repaired before the next step.
_ALONE: Final = frozenset((b"XSETID", b"EXEC"))


def _batches(script: Sequence[Step]) -> Iterator[tuple[int, int, list[Words]]]:
    """Runs of steps on one connection, with the number of their first step."""
    batch: list[Words] = []
    for number, step in enumerate(script):
        batch.append(step.words)
        is_last = number + 1 == len(script) or script[number + 1].connection != step.connection
        if is_last or step.words[0].upper() in _ALONE:
            yield number + 1 - len(batch), step.connection, batch
            batch = []


# -- explaining --------------------------------------------------------------------------------------------------------


@dataclass
class Shrinker:
    """Leave out steps for as long as `fails` still finds a mismatch (delta debugging), for at most `seconds`."""

    fails: Callable[[Sequence[Step]], Mismatch | None]
    seconds: float = 40.0

    def shrink(self, script: Sequence[Step], mismatch: Mismatch) -> tuple[list[Step], Mismatch]:
        deadline = time.monotonic() + self.seconds
        steps = list(script[: mismatch.number + 1])
        chunk = max(1, len(steps) // 2)
        while time.monotonic() < deadline:
            shorter, found = self._without_one_chunk(steps, chunk, deadline)
            if found is not None:
                steps, mismatch = shorter, found
                chunk = min(chunk, max(1, len(steps) // 2))
            elif chunk > 1:
                chunk //= 2
            else:
                break
        return steps, mismatch

    def _without_one_chunk(self, steps: list[Step], chunk: int, deadline: float) -> tuple[list[Step], Mismatch | None]:
        for end in range(len(steps), 0, -chunk):
            if time.monotonic() > deadline:
                break
            shorter = steps[: max(0, end - chunk)] + steps[end:]
            found = self.fails(shorter)
            if found is not None:
                return shorter[: found.number + 1], found
        return steps, None


def as_text(script: Sequence[Step]) -> str:
    """The script as lines `connection> words`, quoted as redis-cli quotes; `from_text` reads them back."""
    return "\n".join(f"{step.connection}> {' '.join(map(quote, step.words))}" for step in script)


def from_text(text: str) -> list[Step]:
    """Read lines of `as_text`."""
    steps = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        connection, _, rest = line.partition("> ")
        steps.append(Step(int(connection), tuple(_split(rest))))
    return steps


_WORD = re.compile(r'"((?:\\.|[^"\\])*)"|(\S+)')
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\(.)")
_NAMED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "r": "\r"}


def _split(line: str) -> Iterator[bytes]:
    def unescape(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _NAMED.get(match[2], match[2])

    for match in _WORD.finditer(line):
        word = _ESCAPE.sub(unescape, match[1]) if match[1] is not None else match[2]
        yield word.encode("latin-1")


def script_of(*commands: Sequence[Word]) -> list[Step]:
    """A script by hand, on connection 0."""
    return [Step(0, tuple(map(encode_word, words))) for words in commands]
