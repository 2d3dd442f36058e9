"""What may differ between redis-server 7.0.15 and ours in groups: clocks, and what later releases changed.

`differences.py` explains masks and differences; these are the ones of consumer groups.  How Redis 7.2 and later count
what a group has read cannot be seen in 7.0's replies: `test_oracle.py` and `test_against_oracle.py` look at that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from tests.support.raw import Node
from tests.support.scripts.differences import Change, Difference, Rule, Words

MOMENTS: Final = frozenset((b"idle", b"seen-time"))
COUNTERS: Final = frozenset((b"entries-read", b"lag"))
NEWER_FIELDS: Final = frozenset((b"active-time", b"inactive", b"nacked-count"))
POLICY_HELP: Final = b"POLICY <key> <groupname> [option]"
SOME: Final = Node(":", b"<some>")


def _is_xinfo(*names: bytes) -> Callable[[Words], bool]:
    return lambda words: words[0].upper() == b"XINFO" and len(words) > 2 and words[1].upper() in names


def _is_map(node: Node) -> bool:
    """Groups and consumers begin with their name, streams with their length; lists of fields never do here."""
    children = node.children
    return bool(children) and len(children) % 2 == 0 and children[0].text in (b"name", b"length")


def _map_pairs(node: Node, change: Callable[[bytes, Node], Node | None]) -> Node:
    """Change the value of every pair in every map, or leave the pair out; innermost maps last."""
    if node.children is None:
        return node
    if not _is_map(node):
        return node.with_children(_map_pairs(child, change) for child in node.children)
    pairs = [(name, change(name.text, value)) for name, value in node.pairs()]
    kept = [(name, _map_pairs(value, change)) for name, value in pairs if value is not None]
    return Node(node.kind, b"", tuple(itertools.chain.from_iterable(kept)))


def _pending_of(consumer: Node) -> bytes:
    return next(value.text for name, value in consumer.pairs() if name.text in (b"pending", b"pel-count"))


def _with_pending(consumers: Node) -> Node:
    kept = tuple(one for one in consumers.children or () if _pending_of(one) != b"0")
    return Node(consumers.kind, b"%d" % len(kept), kept)


# -- clocks ------------------------------------------------------------------------------------------------------------


def _mask_moments(words: Words, node: Node) -> Node:
    def change(name: bytes, value: Node) -> Node:
        if name in MOMENTS:
            return SOME
        if name == b"pending" and value.children is not None:
            # [id, consumer, time, count] of a group, [id, time, count] of a consumer
            return value.with_children(_with_time(row, -2) for row in value.children)
        return value

    return _map_pairs(node, change)


def _with_time(row: Node, at: int) -> Node:
    children = list(row.children or ())
    children[at] = SOME
    return row.with_children(children)


def _mask_idle(words: Words, node: Node) -> Node:
    rows = node.children
    if not rows or rows[0].children is None:  # the summary begins with a number
        return node
    return node.with_children(_with_time(row, 2) for row in rows)


MASKS: Final[dict[str, Rule]] = {
    "when consumers were seen and entries delivered": Rule("clocks", _is_xinfo(b"STREAM", b"CONSUMERS"), _mask_moments),
    "idle times": Rule("clocks", lambda words: words[0].upper() == b"XPENDING", _mask_idle),
}


# -- releases ----------------------------------------------------------------------------------------------------------


def without(fields: frozenset[bytes]) -> Change:
    return lambda words, node: _map_pairs(node, lambda name, value: None if name in fields else value)


def _without_idle_consumers(words: Words, node: Node) -> Node:
    if words[1].upper() == b"CONSUMERS":
        return _with_pending(node) if node.children is not None else node

    def change(name: bytes, value: Node) -> Node:
        if name != b"consumers":
            return value
        return SOME if value.children is None else _with_pending(value)

    return _map_pairs(node, change)


def _any_number(words: Words, node: Node) -> Node:
    return SOME if node.kind == ":" else node


def _is_xgroup(name: bytes) -> Callable[[Words], bool]:
    return lambda words: words[0].upper() == b"XGROUP" and len(words) > 1 and words[1].upper() == name


def _help_of_7_0(words: Words, node: Node) -> Node:
    """The lines on POLICY are ours: from its own up to that on HELP."""
    lines = list(node.children or ())
    texts = [line.text for line in lines]
    if POLICY_HELP in texts:
        del lines[texts.index(POLICY_HELP) : texts.index(b"HELP")]
        node = Node(node.kind, b"%d" % len(lines), tuple(lines))
    return node.map_leaves(lambda leaf: Node(leaf.kind, leaf.text.replace(b"Prints this help", b"Print this help")))


def _refuses_plus(words: Words, ours: Node) -> bool:
    return ours.text.startswith(b"ERR The + ID is meaningless")


_GROUP = ("XGROUP", "CREATE", "k", "g", "0", "MKSTREAM")
_READ = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">")

DIFFERENCES: Final[dict[str, Difference]] = {
    "lag and entries-read": Difference(
        reason="7.2 and 8.0 know them in more cases and count otherwise, 8.2.2 clamps ENTRIESREAD",
        applies=_is_xinfo(b"STREAM", b"GROUPS"),
        change=without(COUNTERS),
        demonstration=(
            ("XADD", "k", "1-1", "f", "v"),
            ("XGROUP", "CREATE", "k", "g", "0", "ENTRIESREAD", "5"),
            ("XINFO", "GROUPS", "k"),
        ),
    ),
    "active-time, inactive, nacked-count": Difference(
        reason="fields of 7.2 and 8.8",
        applies=_is_xinfo(b"STREAM", b"CONSUMERS"),
        change=without(NEWER_FIELDS),
        demonstration=(
            ("XADD", "k", "1-1", "f", "v"),
            ("XGROUP", "CREATE", "k", "g", "0"),
            _READ,
            ("XINFO", "CONSUMERS", "k", "g"),
        ),
    ),
    "consumers that were given nothing": Difference(
        reason="a read or claim makes its consumer even if it gives it nothing, since 7.2",
        applies=_is_xinfo(b"STREAM", b"CONSUMERS", b"GROUPS"),
        change=_without_idle_consumers,
        demonstration=(_GROUP, _READ, ("XINFO", "CONSUMERS", "k", "g")),
    ),
    "XGROUP CREATECONSUMER": Difference(
        reason="1 or 0 depends on whether a read has made the consumer",
        applies=_is_xgroup(b"CREATECONSUMER"),
        change=_any_number,
        demonstration=(_GROUP, _READ, ("XGROUP", "CREATECONSUMER", "k", "g", "c")),
    ),
    "XGROUP HELP": Difference(
        reason="`Print` instead of `Prints`, since Redis 7.2; and POLICY is a command of ours",
        applies=_is_xgroup(b"HELP"),
        change=_help_of_7_0,
        demonstration=(("XGROUP", "HELP"),),
    ),
    "XREADGROUP +": Difference(
        reason="an error of its own since Redis 7.4; 7.0 calls it a bad id",
        applies=lambda words: words[0].upper() == b"XREADGROUP" and b"+" in words,
        excuses=_refuses_plus,
        demonstration=(_GROUP, ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", "+")),
    ),
}
