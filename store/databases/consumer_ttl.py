"""CONSUMERTTL of delivery policies: deletes inactive consumers, in slices.

    consumer_ttls   look_ms, stream_no, group_no -> name       the groups with such a policy, the next look first

A group is looked at when its first consumer may be due.  So the cost depends neither on the number of groups nor on the
activity of consumers: a consumer that is seen changes no row here.  A look deletes the consumers that are due, logs
XGROUP DELCONSUMER for each, and enters the group at the time of its next look.  A look at very many consumers reads
their rows in parts; the group is entered for now between them, behind others that are due.

The row of a group whose stream was deleted stays until its time comes.  So a replica looks as well, and leaves the
consumers that are due to its primary.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.groups import decode_look_key
from riverbed.store.format.streams import name_key

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.groups.group import Group

# A consumer that is due but has pending entries, or waits in a blocking read, is looked at again after this time.
LOOK_AGAIN_MS: Final = 10_000
# The longest time to the next look, so that no row outlives its stream for longer.
MAX_AHEAD_MS: Final = 24 * 3600 * 1000


def sweep(
    txn: WriteTxn, now_ms: int, expired: Callable[[], bool], waiting: Callable[[Group], Container[bytes]]
) -> bool:
    """Look at the groups that are due until `expired()`; -> whether all were looked at.

    `waiting` returns the names of a group's consumers that wait in a blocking read: these are not idle.
    Raises DamagedRowError, also when a row here is not the one of its group: it would stay the first one for ever.
    """
    if txn.keep_expired:
        return True  # the log has the deletions
    cursor = txn.cursor("consumer_ttls")
    while cursor.first():
        key, name = cursor.item()
        look_ms, stream_no, group_no = decode_look_key(key)
        if look_ms > now_ms:
            return True
        group = _find(txn, stream_no, name, now_ms)
        if group is None or group.group_no != group_no:
            txn.lmdb.delete(key, db=txn.handles["consumer_ttls"])
        elif group.look_ms != look_ms:
            raise DamagedRowError("the time for consumers", stream_no)
        else:
            _look(group, now_ms, expired, waiting)
        txn.swept = True
        if expired():
            return False
    return True


def _find(txn: WriteTxn, stream_no: int, name: bytes, now_ms: int) -> Group | None:
    """The group `name` of a stream, whichever database and key the stream has now."""
    for db in txn.databases:
        key = txn.lmdb.get(name_key(db.keyspace_no, stream_no), db=txn.handles["names"])
        if key is not None:
            stream = db.stream(key, now_ms)
            return None if stream is None else db.groups(stream).get(name)
    return None


def _look(group: Group, now_ms: int, expired: Callable[[], bool], waiting: Callable[[Group], Container[bytes]]) -> None:
    """Delete the consumers that are due, and set the time of the next look: now, if that was not all of them."""
    if group.sweep_place is None and group.consumers.are_many:
        group.write_consumers()  # they are read from their table
    ttl_ms = group.policy.consumer_ttl_ms
    place: int | None
    place, next_ms = group.sweep_place or (0, now_ms + min(ttl_ms, MAX_AHEAD_MS))
    busy: Container[bytes] | None = None
    while place is not None:
        part, following = group.consumers.part(place)
        due = []
        for number, consumer in part:
            due_ms = consumer.seen_ms + ttl_ms
            if due_ms > now_ms:
                next_ms = min(next_ms, due_ms)
            elif consumer.pel_count:
                next_ms = min(next_ms, now_ms + LOOK_AGAIN_MS)
            elif not group.stream.txn.follows:
                due.append((number, consumer.name))
        if due and busy is None:
            busy = waiting(group)
        for number, name in due:
            if busy is not None and name in busy:
                next_ms = min(next_ms, now_ms + LOOK_AGAIN_MS)
                continue
            group.delete_consumer(group.consumers.numbered(number))
            if expired():
                following = place
                break
        place = following
        if place is not None and expired():
            break
    group.sweep_place = None if place is None else (place, next_ms)
    group.unlist()
    group.enlist(next_ms if place is None else now_ms)
