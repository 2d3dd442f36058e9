"""The oracle's replies in the form in which a server's arrive, without what it only guesses."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

# The tree that Redis keeps nodes in is not ours.
_GUESSED: Final = b"radix-tree-nodes"


def flat(reply: Any, without: Set[bytes] = frozenset()) -> Any:
    """A reply as RESP2 has it, without the fields that are named."""
    if isinstance(reply, dict):
        return [flat(item, without) for pair in reply.items() if pair[0] not in without for item in pair]
    if isinstance(reply, list):
        return [flat(item, without) for item in reply]
    return reply


def without_tree(reply: Any) -> Any:
    """XINFO STREAM without the number of nodes; any other reply as it is."""
    if isinstance(reply, list) and _GUESSED in reply:
        at = reply.index(_GUESSED)
        return reply[:at] + reply[at + 2 :]
    return reply
