"""One case or more for each mutator: what it leaves in the tables and in the log."""

from __future__ import annotations

from collections.abc import Callable

from riverbed.store.databases.consumer_ttl import sweep
from riverbed.store.databases.names import all_keys
from riverbed.store.format.resp import encode_command
from riverbed.store.groups.group import Group
from riverbed.store.groups.pending_reads import Found
from riverbed.store.ids import MAX_ID, MIN_ID, pack_id
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.wire import APPENDED, Run, parse
from tests.support.store.stores import Store, sid

Case = Callable[[Store], object]

NOW_MS = 1_700_000_000_000


def append(store: Store) -> None:
    store.add(b"s", "1-0", "1-1", words=(b"", b"", b"\r\n\0", b"x" * 2000))
    store.add(b"k" * 500, "0-1", f"{2**64 - 1}-{2**64 - 1}", db=15)


def append_with_trims(store: Store) -> None:
    stream = store.stream()
    trims = [
        Trim(Strategy.MAXLEN, 6),
        Trim(Strategy.MAXLEN, 5, approximate=True),
        Trim(Strategy.MAXLEN, 3, approximate=True, limit=2),
        Trim(Strategy.MINID, sid("20-0")),
        Trim(Strategy.MINID, sid("45-0"), approximate=True),
        Trim(Strategy.MAXLEN, 0),
    ]
    for number in range(60):
        trimming.append_and_trim(stream, sid(f"{number + 1}-0"), [b"f", b"%d" % number], trims[number // 10])


def append_runs(store: Store) -> None:
    for number in range(3):
        store.add(b"k%d" % number, "1-0", words=(b"f", b"v"))
    requests = [
        [
            b"XADD",
            b"k%d" % (number % 3),
            *(b"NOMKSTREAM MAXLEN ~ 100 *".split() if number % 4 else [b"*"]),
            b"f",
            b"v" * 80,
        ]
        for number in range(200)
    ]
    [run] = [one for one in parse(APPENDED, b"".join(map(encode_command, requests))) or [] if isinstance(one, Run)]
    assert store.db.append_run(run, NOW_MS)[0] == len(run) == len(requests)


def delete_entries(store: Store) -> None:
    stream = store.fill(b"s", 20)
    stream.delete_entries([sid("3-0"), sid("1-0"), sid("20-0"), sid("3-0"), sid("99-0")])
    stream.delete_entries([sid("99-0")])


def trim(store: Store) -> None:
    for key, how in (
        (b"a", Trim(Strategy.MAXLEN, 7)),
        (b"b", Trim(Strategy.MAXLEN, 7, approximate=True)),
        (b"c", Trim(Strategy.MINID, sid("9-0"))),
        (b"d", Trim(Strategy.MINID, sid("19-0"), approximate=True, limit=9)),
        (b"e", Trim(Strategy.MAXLEN, 0)),
        (b"f", Trim(Strategy.MINID, sid("99-0"), approximate=True)),
    ):
        stream = store.fill(key, 20)
        stream.delete_entries([sid("4-0"), sid("12-0"), sid("20-0")])
        trimming.trim(stream, how)


def trim_by_reference(store: Store) -> None:
    for key, how in (
        (b"a", "MAXLEN 7 DELREF"),
        (b"b", "MAXLEN 7 ACKED"),
        (b"c", "MINID ~ 15-0 ACKED"),
        (b"d", "MAXLEN ~ 3 DELREF"),
    ):
        store.fill(key, 20)
        store.deliver(key, 12)
        store.deliver(key, 5, group="h")
        store.run("XACK", key, "g", "2-0", "3-0", "5-0", "7-0")
        store.run("XACK", key, "h", "2-0", "3-0", "4-0")
        store.run("XTRIM", key, *how.split())
        store.run("XADD", key, *how.split(), "30-0", "f", "v")


def set_id(store: Store) -> None:
    store.fill(b"a", 5).set_id(sid("9-9"))
    store.fill(b"b", 5).set_id(sid("9-9"), 77, sid("8-8"))
    trimming.trim(store.fill(b"c", 600), Trim(Strategy.MAXLEN, 0))
    store.stream(b"c").set_id(sid("3-0"), 600, MIN_ID)
    store.add(b"c", "4-0")


def whole_streams(store: Store) -> None:
    for key in (b"a", b"b", b"c", b"d", b"e"):
        store.fill(key, 3)
    store.deliver(b"a", 2)
    store.db.rename(store.stream(b"a"), b"b")
    store.db.move(store.stream(b"c"), store.txn.databases[3])
    store.db.copy(store.stream(b"b"), store.txn.databases[3], b"d" * 500)
    store.db.copy(store.stream(b"b"), store.db, b"e")
    store.db.delete(store.stream(b"d"))
    store.fill(b"x", 2, db=1)
    store.fill(b"y", 2, db=2)
    store.txn.databases[1].flush()
    store.txn.swap(store.db, store.txn.databases[3])
    store.add(b"e", "9-0")
    store.add(b"e", "9-0", db=3)


def deadlines(store: Store) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        store.fill(key, 3)
        store.db.set_expiry(store.stream(key), NOW_MS + 10)
    store.db.set_expiry(store.stream(b"a"), None)
    store.db.set_expiry(store.stream(b"b"), 1)
    store.db.set_expiry(store.stream(b"c"), NOW_MS + 10**9)
    assert store.db.stream(b"b", NOW_MS) is None
    assert store.txn.expire_due(NOW_MS + 20, 10) == 1
    assert sorted(all_keys(store.db, 0)) == [b"a", b"c"]


def records(store: Store) -> None:
    store.txn.idmp_max_records = 3
    store.run("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
    store.run("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
    store.run("XADD", "s", "IDMPAUTO", "q", "*", "f", "v")
    idempotence = Idempotence(store.stream())
    for number in range(5):
        idempotence.record(b"\0\r\n", b"%d" % number, sid("1-0"))
    idempotence.count_duplicate()
    store.db.copy(store.stream(), store.db, b"t")
    Idempotence(store.stream(b"t")).set_counts(70, 7)
    Idempotence(store.stream(b"t")).configure(50, 2)
    Idempotence(store.stream(b"t")).record(b"p", b"i", sid("2-0"))


def groups(store: Store) -> None:
    store.run("XGROUP", "CREATE", "new", "", "$", "MKSTREAM")
    stream = store.fill(b"s", 8)
    for name, last_id, read in ((b"g", "0-0", 0), (b"h", "3-0", None), (b"gone", "8-0", 8)):
        store.db.groups(stream).create(name, sid(last_id), read, is_first=False)
    group = group_of(store, b"g")
    group.get_or_create(b"Alice", NOW_MS)
    group.get_or_create(b"", NOW_MS + 1)
    store.run("XSEEN", "s", "g", "", NOW_MS - 7, NOW_MS - 9)  # as an import does
    store.run("XSEEN", "s", "g", "Dora", NOW_MS, -1)
    group.set_position(sid("4-0"), None)
    group_of(store, b"h").set_position(sid("5-0"), 5)
    store.groups().destroy(group_of(store, b"gone"))


def group_of(store: Store, name: bytes, key: bytes = b"s") -> Group:
    group = store.groups(key).get(name)
    assert group is not None
    return group


def meetings(store: Store) -> None:
    """A consumer that is only met, and a position that is only raised, are in no other line of the log."""
    groups = store.db.groups(store.fill(b"s", 8))
    for name in (b"g", b"h", b"i"):
        groups.create(name, sid("0-0"), 0, is_first=False)
    group_of(store, b"g").get_or_create(b"Alice", NOW_MS)
    group_of(store, b"g").get_or_create(b"Bob", NOW_MS)
    group_of(store, b"g").raise_position(sid("3-0"))
    group_of(store, b"h").raise_position(sid("5-0"))
    group_of(store, b"h").get_or_create(b"Carol", NOW_MS)
    group_of(store, b"h").get_or_create(b"Carol", NOW_MS + 5)
    group_of(store, b"i").raise_position(sid("7-0"))
    alice, bob = (group_of(store, b"i").get_or_create(name, NOW_MS) for name in (b"Alice", b"Bob"))
    group_of(store, b"i").set_times(alice, NOW_MS + 1, NOW_MS + 2)
    group_of(store, b"i").set_times(bob, NOW_MS + 3, NOW_MS + 4)
    group_of(store, b"i").set_times(alice, NOW_MS + 5, NOW_MS + 6)


def deliveries(store: Store) -> None:
    store.fill(b"s", 30)
    store.deliver(b"s", 10)
    store.clock.now_ms += 1000
    store.deliver(b"s", 3, consumer="Bob")
    store.run("XREADGROUP", "GROUP", "g", "Quiet", "NOACK", "COUNT", 2, "STREAMS", "s", ">")
    store.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", "5")
    store.run("XREADGROUP", "GROUP", "g", "Nothing", "STREAMS", "s", "0")
    store.run("XACK", "s", "g", "2-0", "12-0", "99-0")
    store.run("XDEL", "s", "3-0", "14-0")
    store.run("XGROUP", "SETID", "s", "g", "1-0")
    store.clock.now_ms += 1000
    store.deliver(b"s", 4, consumer="Carol")
    store.run("XREADGROUP", "GROUP", "g", "Dave", "COUNT", 9, "CLAIM", 500, "STREAMS", "s", ">")
    store.run("XGROUP", "DELCONSUMER", "s", "g", "Bob")


def single_entries(store: Store) -> None:
    """One entry delivered, acknowledged and claimed at a time."""
    store.fill(b"s", 6)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    group = group_of(store, b"g")
    for number in range(1, 5):
        ((key, row),) = store.stream().rows(sid(f"{number}-0"), MAX_ID, 1)
        alice = group.get_or_create(b"Alice", store.clock.now_ms)
        group.deliver_one(alice, key, row, store.clock.now_ms, in_transaction=False)
        store.txn.end_command()
        store.clock.now_ms += 1
    assert group.ack_one(pack_id(sid("2-0")), b"2-0") == 1
    packed = pack_id(sid("3-0"))
    standing = group.pel.standing(packed)
    assert standing is not None
    owner_no, _, count = standing
    bob = group.get_or_create(b"Bob", store.clock.now_ms)
    group.claim_one(bob, packed, b"$3\r\n3-0\r\n", owner_no, count, store.clock.now_ms)


def claims_of_one_pipeline(store: Store) -> None:
    """Claims of one entry each, executed together: of several counts, not in order, too early, of one given back."""
    store.fill(b"s", 9)
    store.deliver(b"s", 6)
    store.run("XCLAIM", "s", "g", "Bob", 0, "2-0", "RETRYCOUNT", 7, "JUSTID")
    store.run("XDEL", "s", "6-0")
    store.run("XNACK", "s", "g", "FAIL", "IDS", 1, "3-0")
    store.clock.now_ms += 1000
    group = group_of(store, b"g")
    numbers = (5, 3, 2, 8, 1, 6, 4)
    packed_ids, wires = [pack_id(sid(f"{n}-0")) for n in numbers], [b"$3\r\n%d-0\r\n" % n for n in numbers]
    assert group.claim_each(b"Carol", packed_ids, wires, 500, store.clock.now_ms) == bytes([1, 1, 1, 0, 1])
    store.txn.end_command()
    assert group.claim_each(b"Dave", packed_ids, wires, 500, store.clock.now_ms) == bytes(5)
    store.txn.end_command()


def claims(store: Store) -> None:
    store.fill(b"s", 12)
    store.deliver(b"s", 8)
    store.run("XDEL", "s", "4-0")
    store.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "2-0", "4-0", "IDLE", 5000)
    store.run("XCLAIM", "s", "g", "Bob", 0, "3-0", "11-0", "TIME", NOW_MS - 7, "RETRYCOUNT", 9, "FORCE", "JUSTID")
    store.run("XCLAIM", "s", "g", "Eve", 0, "99-0", "LASTID", "10-0")
    store.clock.now_ms += 10_000
    store.run("XAUTOCLAIM", "s", "g", "Carol", 5_000, "0", "COUNT", 3)
    store.run("XNACK", "s", "g", "FAIL", "IDS", 2, "5-0", "6-0")
    store.run("XACK", "s", "g", "5-0")


def removals_by_reference(store: Store) -> None:
    store.fill(b"s", 12)
    store.deliver(b"s", 8)
    store.deliver(b"s", 4, group="h")
    store.run("XACK", "s", "g", "1-0", "2-0")
    store.run("XDELEX", "s", "DELREF", "IDS", 2, "3-0", "12-0")
    store.run("XDELEX", "s", "ACKED", "IDS", 3, "1-0", "2-0", "11-0")
    store.run("XACKDEL", "s", "g", "KEEPREF", "IDS", 1, "4-0")
    store.run("XACKDEL", "s", "g", "ACKED", "IDS", 2, "5-0", "6-0")
    store.groups().forget([pack_id(sid("7-0")), pack_id(sid("8-0"))])


def policies(store: Store) -> None:
    store.fill(b"s", 12)
    store.deliver(b"s", 8)
    store.deliver(b"s", 2, consumer="Bob")
    store.run("XNACK", "s", "g", "FATAL", "IDS", 1, "3-0")
    store.run("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 2, "DEADLETTER", "dead", "CONSUMERTTL", 5_000)
    store.run("XCLAIM", "s", "g", "Alice", 0, "9-0")
    over_limit: list[Found] = []
    group = group_of(store, b"g")
    assert len(group.overdue(0, store.clock.now_ms, None, over_limit)) == 8
    group.move_out(over_limit, store.stream(b"dead"), sid("5-5"))
    store.run("XGROUP", "CREATE", "s", "h", "$")
    store.run("XGROUP", "POLICY", "s", "h", "CONSUMERTTL", 1)
    store.run("XGROUP", "POLICY", "s", "h", "CONSUMERTTL", "OFF")
    store.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    store.db.copy(store.stream(b"s"), store.txn.databases[3], b"copy")
    store.clock.now_ms += 10_000
    assert sweep(store.txn, store.clock.now_ms, lambda: False, lambda group: ())
    assert [each.name for each in group_of(store, b"g").consumers.in_order()] == [b"Alice", b"Bob"]


CASES: list[Case] = [
    append,
    append_runs,
    append_with_trims,
    delete_entries,
    trim,
    trim_by_reference,
    set_id,
    whole_streams,
    deadlines,
    records,
    groups,
    meetings,
    deliveries,
    single_entries,
    claims_of_one_pipeline,
    claims,
    removals_by_reference,
    policies,
]
