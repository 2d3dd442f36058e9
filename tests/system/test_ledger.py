"""The judge of the crash tests is tried first: it accepts what is right and names what is wrong."""

from __future__ import annotations

import pytest

from tests.support.faults.ledger import Account, Add, Contents, Delete, Fate, Ledger, Sight, TrimBelow
from tests.support.faults.producers import Operation

pytestmark = pytest.mark.once

ONE, TWO, THREE = (1, 0), (2, 0), (3, 0)


def ledger_of(*adds: Add) -> tuple[Ledger, Account]:
    ledger = Ledger()
    account = ledger.account(b"p")
    account.adds += adds
    return ledger, account


def acknowledged(payload: bytes, entry_id: tuple[int, int]) -> Add:
    return Add(b"s", payload, fate=Fate.ACKNOWLEDGED, entry_id=entry_id)


def complaints(ledger: Ledger, *entries: tuple[tuple[int, int], bytes], added: int | None = None) -> list[str]:
    return list(ledger.verify({b"s": Contents(entries, len(entries) if added is None else added)}))


def test_what_was_acknowledged_must_be_there() -> None:
    ledger, _ = ledger_of(acknowledged(b"a", ONE), acknowledged(b"b", TWO))
    assert complaints(ledger, (ONE, b"a"), (TWO, b"b")) == []
    assert any("lost" in line for line in complaints(ledger, (ONE, b"a"), added=2))


def test_an_unknown_write_may_be_there_once() -> None:
    ledger, _ = ledger_of(acknowledged(b"a", ONE), Add(b"s", b"b"))
    assert complaints(ledger, (ONE, b"a")) == []
    assert complaints(ledger, (ONE, b"a"), (TWO, b"b")) == []
    assert any("twice" in line for line in complaints(ledger, (ONE, b"a"), (TWO, b"b"), (THREE, b"b")))


def test_a_refused_write_must_not_be_there() -> None:
    ledger, _ = ledger_of(Add(b"s", b"a", fate=Fate.FAILED))
    assert complaints(ledger) == []
    assert any("refused" in line for line in complaints(ledger, (ONE, b"a")))


def test_the_order_of_a_producer_is_kept() -> None:
    ledger, _ = ledger_of(Add(b"s", b"a"), Add(b"s", b"b"))
    assert complaints(ledger, (ONE, b"a"), (TWO, b"b")) == []
    assert any("before an earlier" in line for line in complaints(ledger, (ONE, b"b"), (TWO, b"a")))


def test_an_entry_stays_at_its_id() -> None:
    ledger, _ = ledger_of(acknowledged(b"a", ONE))
    assert any("acknowledged at" in line for line in complaints(ledger, (TWO, b"a")))


def test_deleted_entries_stay_away_and_may_be_missing() -> None:
    ledger, account = ledger_of(acknowledged(b"a", ONE), acknowledged(b"b", TWO))
    account.deletes += [Delete(b"s", ONE, Fate.ACKNOWLEDGED), Delete(b"s", TWO)]
    assert complaints(ledger, (TWO, b"b"), added=2) == []
    assert complaints(ledger, added=2) == []
    assert any("deleted" in line for line in complaints(ledger, (ONE, b"a"), (TWO, b"b")))


def test_trimmed_entries_stay_away_and_no_others_go() -> None:
    ledger, account = ledger_of(acknowledged(b"a", ONE), acknowledged(b"b", TWO))
    account.trims.append(TrimBelow(b"s", TWO, Fate.ACKNOWLEDGED))
    assert complaints(ledger, (TWO, b"b"), added=2) == []
    assert any("trimmed" in line for line in complaints(ledger, (ONE, b"a"), (TWO, b"b")))
    assert any("lost" in line for line in complaints(ledger, added=2))


def test_a_capped_stream_holds_its_last_entries() -> None:
    adds = [
        Add(b"s", payload, 2, None, Fate.ACKNOWLEDGED, (number, 0))
        for number, payload in enumerate((b"a", b"b", b"c"), 1)
    ]
    ledger, _ = ledger_of(*adds)
    assert complaints(ledger, (TWO, b"b"), (THREE, b"c"), added=3) == []
    assert any("lost" in line for line in complaints(ledger, (ONE, b"a"), (THREE, b"c"), added=3))
    assert any("are left" in line for line in complaints(ledger, (THREE, b"c"), added=3))


def test_a_transaction_is_there_whole_or_not_at_all() -> None:
    ledger, _ = ledger_of(Add(b"s", b"a", pair=b"1"), Add(b"t", b"a", pair=b"1"))
    half = {b"s": Contents(((ONE, b"a"),), 1)}
    assert any("one half" in line for line in ledger.verify(half))
    assert list(ledger.verify({**half, b"t": Contents(((ONE, b"a"),), 1)})) == []
    assert list(ledger.verify({})) == []


@pytest.mark.parametrize("shown", [ONE, TWO])
def test_what_a_reader_saw_must_still_be_there(shown: tuple[int, int]) -> None:
    ledger, account = ledger_of(Add(b"s", b"a"))
    account.seen.append(Sight(b"s", shown, b"a"))
    lines = complaints(ledger, (ONE, b"a"))
    assert bool(lines) == (shown != ONE)


def test_without_a_disk_nothing_may_be_acknowledged() -> None:
    early, under_way, late = (
        acknowledged(payload, entry_id) for payload, entry_id in ((b"a", ONE), (b"b", TWO), (b"c", THREE))
    )
    early.asked_at, early.told_at = 1, 2
    under_way.asked_at, under_way.told_at = 9, 11
    late.asked_at, late.told_at = 13, 14
    ledger, account = ledger_of(early, under_way, late)
    account.seen += [Sight(b"s", ONE, b"a", 5), Sight(b"s", TWO, b"b", 11)]
    assert [b"c" in line.encode() for line in ledger.lost_disk(10, 12)] == [True]
    assert complaints(ledger, (ONE, b"a")) == []
    assert complaints(ledger, (ONE, b"a"), (TWO, b"b")) == []
    assert complaints(ledger) != []


@pytest.mark.parametrize("kind", [Delete, TrimBelow])
def test_without_a_disk_a_removal_may_find_nothing_to_remove(kind: type[Delete | TrimBelow]) -> None:
    ledger, account = ledger_of()
    vain = kind(b"s", ONE, Fate.ACKNOWLEDGED, 13, 14, found_none=True)
    real = kind(b"s", TWO, Fate.ACKNOWLEDGED, 13, 14)
    account.deletes += [one for one in (vain, real) if isinstance(one, Delete)]
    account.trims += [one for one in (vain, real) if isinstance(one, TrimBelow)]
    (complaint,) = ledger.lost_disk(10, 12)
    assert str(TWO) in complaint
    assert {vain.fate, real.fate} == {Fate.UNKNOWN}


def test_a_producer_notes_that_a_removal_found_nothing() -> None:
    for reply, none in ((b":0\r\n", True), (b":3\r\n", False), (b"-MISCONF\r\n", False)):
        trim = TrimBelow(b"s", ONE)
        Operation([("XTRIM", "s", "MINID", "1-0")], removal=trim).settle([reply], 1)
        assert (trim.found_none, trim.fate) == (none, Fate.FAILED if reply.startswith(b"-") else Fate.ACKNOWLEDGED)
