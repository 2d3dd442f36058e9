"""A client in one line, as CLIENT LIST and ACL LOG show it.

Reads a session and the buffers and addresses of its peer, and changes nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session


def describe(
    session: Session, now_ms: int, argv: list[bytes] | None = None, name: bytes = b"", *, in_transaction: bool = False
) -> bytes:
    """One line of CLIENT LIST.  `argv` is the client's request under way, perhaps in a transaction, `name` its command.

    Fields are Redis's, in its order, because tools read them by name and by position; what has no meaning here (buffers
    of fixed size, threads) is 0.
    """
    peer = session.peer
    is_in_multi = in_transaction or session.transaction.queued is not None
    query_bytes = session.input.unread_bytes + session.input.pending_bytes
    queued_bytes = session.transaction.queued_bytes
    words_bytes = session.taken_bytes + sum(map(len, argv or ()))
    output_bytes = session.output_bytes
    last_command = name or session.last_command.lower() or b"NULL"
    fields = (
        (b"id", b"%d" % session.id),
        (b"addr", os.fsencode(peer.address)),
        (b"laddr", os.fsencode(peer.local_address)),
        (b"fd", b"%d" % peer.fd),
        (b"name", session.names.client),
        (b"age", _seconds_since(now_ms, session.created_ms)),
        (b"idle", _seconds_since(now_ms, session.last_interaction_ms)),
        (b"flags", _flags(session, in_transaction)),
        (b"db", b"%d" % session.db.number),
        (b"sub", b"%d" % len(session.subscriptions.channels)),
        (b"psub", b"%d" % len(session.subscriptions.patterns)),
        (b"ssub", b"%d" % len(session.subscriptions.shard_channels)),
        (b"multi", b"%d" % (session.transaction.queued_count if is_in_multi else -1)),
        (b"watch", b"%d" % session.transaction.watched_keys),
        (b"qbuf", b"%d" % query_bytes),
        (b"qbuf-free", b"0"),
        (b"argv-mem", b"%d" % words_bytes),
        (b"multi-mem", b"%d" % queued_bytes),
        (b"rbs", b"0"),
        (b"rbp", b"0"),
        (b"obl", b"0"),
        (b"oll", b"0"),
        (b"omem", b"%d" % output_bytes),
        (b"tot-mem", b"%d" % (query_bytes + queued_bytes + words_bytes + output_bytes + session.account.kept)),
        (b"events", b"rw" if output_bytes else b"r"),
        (b"cmd", last_command),
        (b"user", session.user.name),
        (b"redir", b"-1"),
        (b"resp", b"%d" % session.resp),
        (b"lib-name", session.names.library),
        (b"lib-ver", session.names.library_version),
        (b"io-thread", b"0"),
        (b"tot-net-in", b"%d" % session.bytes_in),
        (b"tot-net-out", b"%d" % session.bytes_out),
        (b"tot-cmds", b"%d" % session.commands_processed),
    )
    return b" ".join([b"%b=%b" % field for field in fields]) + b"\n"


def _seconds_since(now_ms: int, ms: int) -> bytes:
    return b"%d" % (max(now_ms - ms, 0) // 1000)


def _flags(session: Session, in_transaction: bool) -> bytes:
    """One letter for each state of a client, N for none."""
    letters = (
        (session.is_replica, b"S"),
        (session.is_monitor, b"O"),
        (session.subscriptions, b"P"),
        (in_transaction or session.transaction.queued is not None, b"x"),
        (session.blocked is not None, b"b"),
        (session.transaction.watch_broken, b"d"),
        (session.closing, b"c"),
        (session.peer.address.startswith("/"), b"U"),
        (session.no_evict, b"e"),
        (session.no_touch, b"T"),
    )
    return b"".join([letter for holds, letter in letters if holds]) or b"N"
