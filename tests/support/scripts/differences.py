"""What may differ between two servers' replies, by name.

`MASKS` are numbers that come from a clock or from chance: two copies of the same server differ in them as well, and
`test_against_redis.py` holds the masks to that.  `DIFFERENCES` are where we answer as a newer Redis does, or where
Redis 7.0.15 shows its insides; each carries a demonstration, so that an entry which is no longer true fails a test.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.raw import Node, Word
from tests.support.scripts.generators import FAR_SECONDS

Words = tuple[bytes, ...]
Change = Callable[[Words, Node], Node]

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
