"""OBJECT: how a value is stored.

Every value is a stream and nothing is evicted, so the answers are the same for every key that exists.  No stream is
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.commands.keys.keys import TYPE_NAME
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request

NO_LFU: Final = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
    "between policies at runtime LRU and LFU data will take some time to adjust."
)


container(
    "OBJECT", group="generic", since="2.2.3", summary="Container of the commands that look at how a value is kept."
)


@command(
    "OBJECT ENCODING key",
    Flag.READONLY,
    summary="Names the internal encoding of a value.",
    tips=("nondeterministic_output",),
)
def object_encoding(request: Request) -> bytes | None:
    """OBJECT ENCODING key -> stream, or null."""
    return None if request.lookup(request.argv[2]) is None else TYPE_NAME.encode()


@command(
    "OBJECT FREQ key",
    Flag.READONLY,
    since="4.0.0",
    summary="Returns how often a key is used, where that is tracked.",
    tips=("nondeterministic_output",),
)
def object_freq(request: Request) -> None:
    """OBJECT FREQ key -> null for a missing key; otherwise refused, since nothing is evicted by frequency here."""
    if request.lookup(request.argv[2]) is not None:
        raise CommandError(NO_LFU)


declare_help(
    "OBJECT",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Refused: how often a <key> is used is not counted.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
    since="6.2.0",
)


@command(
    "OBJECT IDLETIME key",
    Flag.READONLY,
    summary="Returns how long a key has not been used, where that is tracked.",
    tips=("nondeterministic_output",),
)
def object_idletime(request: Request) -> int | None:
    """OBJECT IDLETIME key -> 0, or null for a missing key.

    Access times are not kept: they would cost a write for every read, for a figure that only eviction needs.  Of the
    two wrong answers, "just used" is the one after which no script deletes a key.
    """
    return None if request.lookup(request.argv[2]) is None else 0


@command(
    "OBJECT REFCOUNT key",
    Flag.READONLY,
    summary="Counts the references to the value at a key.",
    tips=("nondeterministic_output",),
)
def object_refcount(request: Request) -> int | None:
    """OBJECT REFCOUNT key -> 1, or null."""
    return None if request.lookup(request.argv[2]) is None else 1
