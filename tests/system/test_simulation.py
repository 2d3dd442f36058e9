"""Fifty seeds of the simulation, and the means by which it judges: those are tried with what is wrong first.

`make simulate SEEDS=1000` runs more of them, `SEED=17` one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults.ledger import Add, Contents, EntryID, Fate
from tests.support.servers import ROOT
from tests.support.simulation.checker import Final, GroupContents, differences, judge
from tests.support.simulation.machine import Stamp
from tests.support.simulation.records import Ack, Count, Delivery, Records, Wait

ONE, TWO, THREE = (1, 0), (2, 0), (3, 0)
GROUP = b"g"


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.simulation", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)


def test_fifty_seeds_keep_every_promise() -> None:
    done = simulate("--seeds", "50")
    assert done.returncode == 0, done.stdout + done.stderr


# Seeds that have found a defect; beside each, the test that shows the defect alone.
FOUND = {
    313: "tests/store/log/test_lost_writes.py::test_no_batch_is_written_before_the_manifest_names_its_replication_id",
    756: "tests/store/log/test_lost_writes.py::test_a_start_has_another_replication_id_although_nothing_is_left",
    294: "tests/store/test_exchange.py::test_the_log_is_durable_before_the_tables_that_tell_of_a_power_cut_are_gone",
    285: "tests/store/test_engine.py::test_a_state_that_could_not_be_rebuilt_is_never_committed",
}


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_a_seed_that_has_found_a_defect_finds_none_now(seed: int) -> None:
    done = simulate("--seed", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_has_one_history(tmp_path: Path) -> None:
    histories = []
    for number in range(2):
        path = tmp_path / str(number)
        assert simulate("--seed", "7", "--history", str(path)).returncode == 0
        histories.append(path.read_bytes())
    assert histories[0] == histories[1]
    assert len(histories[0]) > 100_000


# -- the judge ---------------------------------------------------------------------------------------------------------


def acknowledged(payload: bytes, entry_id: EntryID, asked_at: float, told_at: float) -> Add:
    return Add(b"s", payload, fate=Fate.ACKNOWLEDGED, entry_id=entry_id, asked_at=asked_at, told_at=told_at)


def complaints(records: Records, **final: object) -> list[str]:
    found = Final({b"s": Contents((), 0)})
    for name, value in final.items():
        setattr(found, name, value)
    return list(judge(records, found))


def test_a_later_add_has_the_greater_id() -> None:
    records = Records()
    adds = [acknowledged(b"a", TWO, 1.0, 2.0), acknowledged(b"b", ONE, 3.0, 4.0)]
    for number, add in enumerate(adds):
        records.account(b"%d" % number).adds.append(add)
        records.told.append(add)
    there = {b"s": Contents(((ONE, b"b"), (TWO, b"a")), 2)}
    assert any("greater ID" in line for line in complaints(records, streams=there))
    adds[1].asked_at = 1.5
    assert complaints(records, streams=there) == []


def test_an_unknown_add_may_come_late() -> None:
    records = Records()
    account = records.account(b"p")
    account.adds += [Add(b"s", b"a"), acknowledged(b"b", ONE, 1.0, 2.0)]
    assert complaints(records, streams={b"s": Contents(((ONE, b"b"), (TWO, b"a")), 2)}) == []


def test_a_watched_transaction_stands_behind_what_it_saw() -> None:
    assert complaints(Records(), links=[(ONE, b"0-0"), (TWO, b""), (THREE, b"2-0")]) == []
    assert any("WATCH" in line for line in complaints(Records(), links=[(ONE, b""), (TWO, b""), (THREE, b"1-0")]))


def deliver(records: Records, *given: tuple[EntryID, bytes]) -> None:
    records.deliveries += [Delivery(GROUP, consumer, entry_id, 1.0, None) for entry_id, consumer in given]


def group(*pending: EntryID, last: EntryID = TWO) -> dict[bytes, GroupContents]:
    return {GROUP: GroupContents(dict.fromkeys(pending, 1), last)}


def test_an_entry_is_given_once() -> None:
    records = Records()
    deliver(records, (ONE, b"c"), (TWO, b"d"))
    assert complaints(records, groups=group(ONE, TWO)) == []
    deliver(records, (TWO, b"c"))
    assert any("was given to b'd' and to b'c'" in line for line in complaints(records, groups=group(ONE, TWO)))


def test_what_was_given_is_acknowledged_or_pending() -> None:
    records = Records()
    deliver(records, (ONE, b"c"), (TWO, b"c"))
    ack = Ack(GROUP, ONE, 1.0)
    records.acks.append(ack)
    assert complaints(records, groups=group(ONE, TWO)) == []
    assert complaints(records, groups=group(TWO)) == []
    assert any("not acknowledged" in line for line in complaints(records, groups=group(ONE)))
    ack.fate = Fate.ACKNOWLEDGED
    assert any("was acknowledged, and is pending" in line for line in complaints(records, groups=group(ONE, TWO)))
    assert any("stands at" in line for line in complaints(records, groups=group(TWO, last=ONE)))


def test_what_a_policy_has_moved_is_moved_once_and_pending_no_more() -> None:
    records = Records()
    deliver(records, (ONE, b"c"), (TWO, b"c"))
    contents = group(TWO)
    contents[GROUP].max_deliveries = 2
    contents[GROUP].moved = [(ONE, 2)]
    assert complaints(records, groups=contents) == []
    for moved, complaint in (
        ([(ONE, 2), (ONE, 2)], "moved twice"),
        ([(ONE, 2), (TWO, 2)], "was moved, and is pending"),
        ([(ONE, 1)], "after 1 deliveries, not 2"),
        ([], "not acknowledged, and is not pending"),
    ):
        contents[GROUP].moved = moved
        (line,) = complaints(records, groups=contents)
        assert complaint in line
    records.acks.append(Ack(GROUP, ONE, 1.0, Fate.ACKNOWLEDGED))
    contents[GROUP].moved = [(ONE, 2)]
    assert any("was acknowledged, and is moved" in line for line in complaints(records, groups=contents))


def test_nothing_is_pending_or_passed_over_that_was_not_given() -> None:
    records = Records()
    assert any("were not given" in line for line in complaints(records, groups=group(ONE)))
    assert any("passed over" in line for line in complaints(records, groups=group(), queue=[ONE, TWO]))
    records.lost_reads[GROUP] = 1
    assert complaints(records, groups=group(ONE), queue=[ONE, TWO]) == []


def test_counts_never_fall() -> None:
    records = Records()
    deliver(records, (ONE, b"c"))
    records.counts += [Count(GROUP, ONE, 2, 1.0, 2.0, None), Count(GROUP, ONE, 1, 1.5, 2.5, None)]
    lines = complaints(records, groups={GROUP: GroupContents({ONE: 2}, TWO)})
    assert lines == []  # the second was asked for before the first was told
    assert any("in the end" in line for line in complaints(records, groups=group(ONE)))
    records.counts.append(Count(GROUP, ONE, 1, 3.0, 4.0, None))
    assert any("and 1 later" in line for line in complaints(records, groups={GROUP: GroupContents({ONE: 2}, TWO)}))


def test_a_claim_raises_the_count() -> None:
    records = Records()
    deliver(records, (ONE, b"c"))
    records.claims.append(Delivery(GROUP, b"d", ONE, 2.0, None))
    assert any("given 2 times" in line for line in complaints(records, groups=group(ONE)))
    assert complaints(records, groups={GROUP: GroupContents({ONE: 2}, TWO)}) == []


def test_what_all_replicas_had_is_not_forgotten_with_a_primary() -> None:
    """WAIT confirmed the first of two entries, and a replica that has neither was promoted."""
    records = Records()
    adds = [acknowledged(b"a", ONE, 1.0, 2.0), acknowledged(b"b", TWO, 3.0, 4.0)]
    records.account(b"p").adds += adds
    records.told += adds
    stamp = Stamp("m", "r", 100)
    records.stamps |= {id(add): stamp for add in adds}
    records.confirmed.append((adds[0], stamp))
    records.forget_lost(lambda stamp, told_at: True)
    assert [add.fate for add in adds] == [Fate.ACKNOWLEDGED, Fate.UNKNOWN]
    (line,) = [line for line in complaints(records) if "lost" in line]
    assert "b'a' was acknowledged" in line


def test_servers_at_one_offset_show_the_same() -> None:
    assert list(differences({"a": ["digest", "group"], "b": ["digest", "group"], "c": ["digest", "group"]})) == []
    (line,) = differences({"a": ["digest", "group"], "b": ["digest", "group"], "c": ["digest", "grouP"]})
    assert line == "a and c differ: group and grouP"


def test_the_ledger_is_judged_as_well() -> None:
    """What was acknowledged, refused, or half of a transaction: `test_ledger.py` has each of its promises."""
    lost, refused = acknowledged(b"a", ONE, 1.0, 2.0), Add(b"s", b"b", fate=Fate.FAILED)
    half = [Add(stream, b"c", pair=b"p", fate=Fate.UNKNOWN) for stream in (b"s", b"t")]
    records = Records()
    records.account(b"p").adds += [lost, refused]
    records.account(b"q").adds += half
    there = {b"s": Contents(((TWO, b"b"), (THREE, b"c")), 3), b"t": Contents((), 0)}
    lines = complaints(records, streams=there)
    for complaint in ("is lost", "was refused, and is there", "one half is there without the other"):
        assert any(complaint in line for line in lines), lines


def test_a_reader_that_waits_is_told_of_what_comes() -> None:
    records = Records()
    add = acknowledged(b"a", TWO, 1.0, 2.0)
    records.account(b"p").adds.append(add)
    records.told.append(add)
    records.stamps[id(add)] = Stamp("m", "r", 100)
    there = {b"s": Contents(((TWO, b"a"),), 1)}

    def found(after: EntryID, block_s: float, offset: int, replication_id: str = "r", machine: str = "m") -> bool:
        records.waits = [Wait(b"s", after, 0.5, block_s, Stamp(machine, replication_id, offset))]
        return any("in vain" in line for line in complaints(records, streams=there))

    assert found(ONE, 2.0, 100)
    assert not found(TWO, 2.0, 100)  # it had read the entry
    assert not found(ONE, 1.0, 100)  # the time was over before
    assert not found(ONE, 2.0, 99)  # the answer came before the entry
    assert not found(ONE, 2.0, 100, "another log")
    assert not found(ONE, 2.0, 100, machine="a replica, which was paused")
