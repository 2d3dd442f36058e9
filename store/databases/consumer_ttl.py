"""CONSUMERTTL of delivery policies: deleting the consumers that have stayed away, a little at a time.

    consumer_ttls   look_ms, stream_no, group_no -> name       the groups that have such a policy, next look first

A group is looked at when the first of its consumers may be due, so what this costs does not depend on how many groups
there are, nor on how busy consumers are: being seen moves nothing here.  At each look the consumers that are due go,
with XGROUP DELCONSUMER in the log, and the group is put where the next look is.

Rows of groups whose stream is gone stay until it is their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final

from riverbed.store.format.groups import decode_look_key
from riverbed.store.format.streams import name_key

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.groups.group import Group

# A consumer that is due but still has something pending, or waits in a blocking read, is looked at again after this.
LOOK_AGAIN_MS: Final = 10_000
# No look is further away, so that no row outlives its stream for longer.
MAX_AHEAD_MS: Final = 24 * 3600 * 1000


def sweep(
    txn: WriteTxn, now_ms: int, expired: Callable[[], bool], waiting: Callable[[Group], Container[bytes]]
) -> bool:
    """Look at the groups whose time has come until `expired()`; -> whether all were looked at.

    `waiting` tells the names of those of a group's consumers that wait in a blocking read: they are not idle.
    """
    if txn.keep_expired or txn.follows:
        return True  # the log says itself who goes
    cursor = txn.cursor("consumer_ttls")
    while cursor.first():
        key, name = cursor.item()
        look_ms, stream_no, group_no = decode_look_key(key)
        if look_ms > now_ms:
            return True
        group = _find(txn, stream_no, name, now_ms)
        if group is None or group.group_no != group_no:
            txn.lmdb.delete(key, db=txn.handles["consumer_ttls"])
        else:
            _look(group, now_ms, expired, waiting)
        txn.swept = True
        if expired():
            return False
    return True


def _find(txn: WriteTxn, stream_no: int, name: bytes, now_ms: int) -> Group | None:
    """The group of that name of a stream, wherever the stream is by now."""
    for db in txn.databases:
        key = txn.lmdb.get(name_key(db.keyspace_no, stream_no), db=txn.handles["names"])
        if key is not None:
            stream = db.stream(key, now_ms)
            return None if stream is None else db.groups(stream).get(name)
    return None


def _look(group: Group, now_ms: int, expired: Callable[[], bool], waiting: Callable[[Group], Container[bytes]]) -> None:
    """Delete the consumers that are due, and set the time of the next look."""
    ttl_ms = group.policy.consumer_ttl_ms
    next_ms = now_ms + min(ttl_ms, MAX_AHEAD_MS)
    due = []
    for consumer in group.consumers.values():
        due_ms = consumer.seen_ms + ttl_ms
        if due_ms > now_ms:
            next_ms = min(next_ms, due_ms)
        elif consumer.pel_count:
            next_ms = min(next_ms, now_ms + LOOK_AGAIN_MS)
        else:
            due.append(consumer)
    busy = waiting(group) if due else ()
    for consumer in due:
        if consumer.name in busy:
            next_ms = min(next_ms, now_ms + LOOK_AGAIN_MS)
            continue
        group.delete_consumer(consumer)
        if expired():
            next_ms = now_ms
            break
    group.unlist()
    group.enlist(next_ms)
