"""The part of the check that walks consumer groups: their counts, their consumers, and three tables that must agree.

A row of a pending list is dead when no consumer has its consumer number, or no group its group number.  Dead rows are
sound as long as a note in table `trash` names them.
"""

from __future__ import annotations

from typing import Final

from riverbed.store.check.findings import Pass, View, require_integers, show, show_id
from riverbed.store.format import groups, pending
from riverbed.store.format.streams import StreamRow, stream_prefix
from riverbed.store.groups.pending.young import MAX_IN_RUN
from riverbed.store.ids import ID_BYTES, StreamID, pack_id, unpack_id
from riverbed.store.model import DeliveryPolicy
from riverbed.store.tables.groups import has_names

_PEL_TABLES: Final = ("pel", "pel_by_consumer", "pel_by_time")


def check_groups(view: View, key: str, stream: StreamRow) -> Pass:
    """Check the groups of one stream."""
    assert view.meta is not None
    names: set[bytes] = set()
    are_named = has_names(view)
    for packed, row in view.rows("groups", stream_prefix(stream.stream_no)):
        yield
        if len(packed) == groups.NAME_KEY_BYTES:
            _check_name(view, packed, row)
            continue
        if len(packed) == groups.CONSUMER_KEY_BYTES:
            _check_home(view, packed)
            continue
        if len(packed) != groups.GROUP_KEY_BYTES:
            view.add("groups", show(packed), "is the key of neither a group nor a consumer")
            continue
        group_no = groups.decode_group_no(packed)
        group = view.decode("groups", f"group {group_no} of {key}", _decode_group, packed, row)
        if group is None:
            continue
        where = f"group {show(group.name)} of {key}"
        if group.name in names:
            view.add("groups", where, "is there twice")
        names.add(group.name)
        if are_named and view.get("groups", groups.group_name_key(stream.stream_no, group.name, group_no)) is None:
            view.add("groups", where, "is not found by its name")
        if group_no >= view.meta.next_group_no:
            view.add("groups", where, f"group_no {group_no}, and {view.meta.next_group_no} is the next to be given out")
        if group_no in view.notes.groups:
            view.add("groups", where, f"group {group_no} is in use, and to be purged as well")
        if _is_listed(group):
            listed = view.get("consumer_ttls", groups.look_key(group.look_ms, stream.stream_no, group_no))
            if listed != group.name:
                view.add("consumer_ttls", where, f"is not listed at {group.look_ms} ms")
        yield from _check_group(view, where, stream.stream_no, group_no, group, are_named=are_named)
    if len(names) != stream.group_count:
        view.add("keys", key, f"{stream.group_count} groups counted, there are {len(names)}")


def _check_home(view: View, packed: bytes) -> None:
    """Check that a consumer's group has a row too, or that the group is to be purged."""
    if view.get("groups", packed[: groups.GROUP_KEY_BYTES]) is None:
        group_no = groups.decode_group_no(packed)
        if group_no not in view.notes.groups:
            view.add("groups", show(packed), f"a consumer of group {group_no}, which is not there")


def _check_name(view: View, packed: bytes, row: bytes) -> None:
    """Check that the row of a name leads to a group or consumer of that name, or that the group is to be purged."""
    if row != groups.name_row(packed):
        view.add("groups", show(packed), "the row of a name does not fit its checksum")
        return
    stream_no, group_no, _, number = groups.decode_digest_key(packed)
    if group_no == groups.NAMES_OF_GROUPS:
        key = groups.group_key(stream_no, number)
    else:
        key = groups.consumer_key(stream_no, group_no, number)
    named = view.get("groups", key)
    if named is None:
        if group_no not in view.notes.groups:
            view.add("groups", show(packed), f"a name leads to number {number}, which is not there")
    elif view.decode("groups", show(key), groups.name_key_of, key, named) not in (packed, None):
        view.add("groups", show(packed), f"a name leads to number {number}, which has another name")


def _decode_group(packed: bytes, row: bytes) -> groups.GroupRow:
    group = groups.GroupRow.unpack(packed, row)
    if type(group.name) is not bytes:
        raise ValueError("not the row of a group")
    require_integers([0 if group.entries_read is None else group.entries_read, group.pel_count, group.released_count])
    require_integers([group.consumer_count, group.next_consumer_no, group.next_release_no])
    if group.policy is not None:
        _check_policy(group.policy, group.look_ms)
    return group


def _check_policy(policy: DeliveryPolicy, look_ms: int) -> None:
    max_deliveries, dead_letter, consumer_ttl_ms = policy
    require_integers([max_deliveries, consumer_ttl_ms, look_ms])
    if (max_deliveries > 0) != (type(dead_letter) is bytes) or not max_deliveries | consumer_ttl_ms:
        raise ValueError(f"{policy} is no delivery policy")


def _is_listed(group: groups.GroupRow) -> bool:
    """Whether the group must have a row in `consumer_ttls`, because its consumers have a TTL."""
    return group.policy is not None and group.policy.consumer_ttl_ms > 0


def _decode_consumer(packed: bytes, row: bytes) -> groups.ConsumerRow:
    consumer = groups.ConsumerRow.unpack(packed, row)
    require_integers([abs(consumer.seen_ms), abs(consumer.active_ms), consumer.pel_count])
    if type(consumer.name) is not bytes:
        raise ValueError("not the row of a consumer")
    return consumer


def _check_group(
    view: View, where: str, stream_no: int, group_no: int, group: groups.GroupRow, *, are_named: bool
) -> Pass:
    counted: dict[int, int] = {pending.UNOWNED: group.released_count}
    names: dict[bytes, int] = {}
    for packed, row in view.rows("groups", groups.group_key(stream_no, group_no)):
        yield
        if len(packed) != groups.CONSUMER_KEY_BYTES:
            continue
        consumer_no = groups.decode_consumer_no(packed)
        consumer = view.decode("groups", f"consumer {consumer_no} of {where}", _decode_consumer, packed, row)
        if consumer is None:
            continue
        if consumer.name in names:
            view.add("groups", where, f"consumer {show(consumer.name)} is there twice")
        names[consumer.name] = consumer_no
        if are_named:
            name_key = groups.consumer_name_key(stream_no, group_no, consumer.name, consumer_no)
            if view.get("groups", name_key) is None:
                view.add("groups", where, f"consumer {show(consumer.name)} is not found by its name")
        counted[consumer_no] = consumer.pel_count
        if not pending.UNOWNED < consumer_no < group.next_consumer_no:
            view.add(
                "groups", where, f"consumer {consumer_no}, and {group.next_consumer_no} is the next to be given out"
            )
        if (group_no, consumer_no) in view.notes.consumers:
            view.add("groups", where, f"consumer {consumer_no} is in use, and to be purged as well")
    if len(names) != group.consumer_count:
        view.add("groups", where, f"{group.consumer_count} consumers counted, there are {len(names)}")

    found = dict.fromkeys(counted, 0)
    runs = dict.fromkeys(counted, 0)
    past = b""  # the last ID of the previous run
    for packed, row in view.rows("pel", pending.group_prefix(group_no)):
        yield
        run = view.decode("pel", f"{where}, {show(packed)}", _decode_run, packed, row)
        if run is None:
            continue
        run_place = f"{where}, the run up to {show_id(unpack_id(run.last))}"
        if run.first <= past:
            view.add("pel", run_place, "begins before the one before it ends")
        past = run.last
        _check_run(view, run_place, group_no, group, run, found, runs)
    for consumer_no, count in found.items():
        if count != counted[consumer_no]:
            owner = "no consumer" if consumer_no == pending.UNOWNED else f"consumer {consumer_no}"
            view.add("groups", where, f"{counted[consumer_no]} entries of {owner} counted, there are {count}")
    view.contents.groups += 1
    view.contents.pending += sum(found.values())
    if sum(found.values()) != group.pel_count:
        view.add("groups", where, f"{group.pel_count} pending entries counted, there are {sum(found.values())}")
    yield from _check_owners(view, where, group_no, runs)
    yield from _check_order(view, where, group_no)


def _decode_run(packed: bytes, row: bytes) -> pending.Run:
    run = pending.Run.unpack(packed, row)
    ids = run.ids()
    if not ids or len(run.packed) % ID_BYTES:
        raise ValueError(f"{len(run.packed)} bytes of IDs")
    if ids != sorted(set(ids)):
        raise ValueError("IDs that do not ascend")
    if packed != pending.group_prefix(pending.decode_group_prefix(packed)) + ids[-1]:
        raise ValueError(f"the last ID is {show_id(unpack_id(ids[-1]))}")
    if len(ids) > (1 if run.consumer_no == pending.UNOWNED else MAX_IN_RUN):
        raise ValueError(f"{len(ids)} entries in one run")
    return run


def _check_run(
    view: View,
    run_place: str,
    group_no: int,
    group: groups.GroupRow,
    run: pending.Run,
    found: dict[int, int],
    runs: dict[int, int],
) -> None:
    """Check that a row of `pel` has its rows in `pel_by_consumer` and `pel_by_time`, and count its entries."""
    consumer_no = run.consumer_no
    if consumer_no in found:
        found[consumer_no] += len(run)
        runs[consumer_no] += 1
    elif (group_no, consumer_no) not in view.notes.consumers:
        view.add("pel", run_place, f"is consumer {consumer_no}'s, which does not exist and has no dead rows")
    if view.get("pel_by_consumer", pending.owner_prefix(group_no, consumer_no) + run.last) is None:
        view.add("pel_by_consumer", run_place, f"is missing in the list of consumer {consumer_no}")
    listed = view.get("pel_by_time", pending.time_key(group_no, run))
    if consumer_no == pending.UNOWNED:
        if run.moment >= group.next_release_no:
            reason = f"release {run.time_ms}, and {group.next_release_no} is the next to be given out"
            view.add("pel", run_place, reason)
        if listed != run.last:
            view.add("pel_by_time", run_place, f"is not the entry of release {run.time_ms}")
    elif listed is None:
        view.add("pel_by_time", run_place, f"is missing at {run.time_ms} ms")


def _check_owners(view: View, where: str, group_no: int, runs: dict[int, int]) -> Pass:
    """Check that the lists of the consumers hold nothing else."""
    listed = dict.fromkeys(runs, 0)
    for packed, row in view.rows("pel_by_consumer", pending.group_prefix(group_no)):
        yield
        if row:
            view.add("pel_by_consumer", f"{where}, {show(packed)}", "holds a value where none belongs")
        last_id = view.decode("pel_by_consumer", show(packed), _decode_last_id, packed, pending.OWNER_KEY_BYTES)
        if last_id is None:
            continue
        consumer_no = pending.decode_owner_no(packed)
        if consumer_no in listed:
            listed[consumer_no] += 1
        elif (group_no, consumer_no) not in view.notes.consumers:
            reason = f"is consumer {consumer_no}'s, which does not exist and has no dead rows"
            view.add("pel_by_consumer", f"{where}, {show_id(last_id)}", reason)
    for consumer_no, count in listed.items():
        if count != runs[consumer_no]:
            reason = f"the list of consumer {consumer_no} holds {count} runs, the group has {runs[consumer_no]}"
            view.add("pel_by_consumer", where, reason)


def _check_order(view: View, where: str, group_no: int) -> Pass:
    """Check that `pel_by_time` holds nothing else."""
    prefix = pending.group_prefix(group_no)
    for packed, row in view.rows("pel_by_time", prefix):
        yield
        holder, sizes = (row, (ID_BYTES,)) if row else (packed, (pending.TIME_KEY_BYTES, pending.TURN_KEY_BYTES))
        last_id = view.decode("pel_by_time", show(packed), _decode_last_id, holder, *sizes)
        if last_id is None:
            continue
        key = prefix + pack_id(last_id)
        run_row = view.get("pel", key)
        run = None if run_row is None else view.decode("pel", show(key), _decode_run, key, run_row)
        run_place = f"{where}, {show_id(last_id)}"
        if run is None:
            view.add("pel_by_time", run_place, "is not the end of a run")
        elif pending.time_key(group_no, run) != packed:
            view.add("pel_by_time", run_place, "is not pending since then")


def _decode_last_id(packed: bytes, *sizes: int) -> StreamID:
    if len(packed) not in sizes:
        raise ValueError(f"{len(packed)} bytes instead of {' or '.join(map(str, sizes))}")
    return unpack_id(pending.last_in_key(packed))


def check_group_tables(view: View) -> Pass:
    """Check that each group belongs to a stream and each pending entry to a group, or that the trash names them."""
    assert view.meta is not None
    group_nos: set[int] = set()
    for stream_no in view.heads("groups"):
        yield
        if not view.is_live_stream(stream_no) and not view.is_dead_stream(stream_no):
            view.add("groups", f"stream {stream_no}", "belongs to no key, and is not to be purged either")
        for packed, _ in view.rows("groups", stream_prefix(stream_no)):
            yield
            if len(packed) == groups.GROUP_KEY_BYTES:
                group_no = groups.decode_group_no(packed)
                if group_no in group_nos:
                    view.add("groups", f"stream {stream_no}", f"group {group_no} is another stream's as well")
                group_nos.add(group_no)
    yield from _check_looks(view)
    for table in _PEL_TABLES:
        for group_no in view.heads(table):
            yield
            if group_no not in group_nos and group_no not in view.notes.groups:
                view.add(table, f"group {group_no}", "is of no stream, and not to be purged either")
            if group_no >= view.meta.next_group_no:
                view.add(table, f"group {group_no}", "is a number not given out yet")


def _check_looks(view: View) -> Pass:
    """Check that rows of `consumer_ttls` agree with the rows of their groups.

    Rows of streams that are gone may stay until their time comes.
    """
    assert view.meta is not None
    for packed, name in view.rows("consumer_ttls"):
        yield
        key = view.decode("consumer_ttls", show(packed), groups.decode_look_key, packed)
        if key is None:
            continue
        look_ms, stream_no, group_no = key
        where = f"group {show(name)} of stream {stream_no}"
        if stream_no >= view.meta.next_stream_no or group_no >= view.meta.next_group_no:
            view.add("consumer_ttls", where, f"stream {stream_no} or group {group_no} is a number not given out yet")
        if not view.is_live_stream(stream_no):
            continue
        packed_group = groups.group_key(stream_no, group_no)
        row = view.get("groups", packed_group)
        group = None if row is None else view.decode("groups", where, _decode_group, packed_group, row)
        if group is None or not _is_listed(group) or (group.name, group.look_ms) != (name, look_ms):
            view.add("consumer_ttls", where, f"is listed at {look_ms} ms, which its row does not show")
