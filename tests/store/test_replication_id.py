from __future__ import annotations

import pytest

from riverbed.store.replication_id import MAX_OLDER, NO_ID, Branch, ReplicationIds


def test_a_branch_holds_the_line_it_comes_from_up_to_where_it_left_it() -> None:
    old = ReplicationIds.new()
    ours = old.branch(100)
    assert ours.holds(ours.replication_id, 1000)
    assert ours.holds(old.replication_id, 100)
    assert not ours.holds(old.replication_id, 101)
    assert not ours.holds(ReplicationIds.new().replication_id, 0)


def test_a_first_line_holds_no_other() -> None:
    assert not ReplicationIds.new().holds(NO_ID, 0)


def test_a_branch_that_nobody_wrote_on_is_forgotten_by_the_next() -> None:
    old = ReplicationIds.new()
    twice = old.branch(100).branch(100)
    assert (twice.previous_id, twice.branch_offset) == (old.replication_id, 100)


def test_others_are_asked_with_the_id_they_may_know() -> None:
    old = ReplicationIds.new()
    ours = old.branch(100)
    assert ours.id_to_send(100) == old.replication_id
    assert ours.id_to_send(101) == ours.replication_id


def test_others_are_asked_with_the_id_that_the_primary_gave_although_nothing_was_written() -> None:
    theirs = ReplicationIds.new()
    for _ in range(3):
        ours = theirs.branch(100).follow(theirs.replication_id, 100)
        assert ours.id_to_send(100) == ours.branch(100).id_to_send(100) == theirs.replication_id
        theirs = theirs.branch(100)
        assert theirs.holds(ours.id_to_send(100), 100)


def test_following_a_renamed_line_keeps_its_old_name() -> None:
    old = ReplicationIds.new()
    new = ReplicationIds.new().replication_id
    followed = old.follow(new, 50)
    assert followed.holds(new, 70)
    assert followed.holds(old.replication_id, 50)
    assert not followed.holds(old.replication_id, 51)
    assert old.follow(old.replication_id, 60) is old


def test_a_store_keeps_its_id_on_every_line_it_comes_to() -> None:
    first = ReplicationIds.new()
    later = first.branch(100).branch(200).follow("a" * 40, 300)
    assert first.store_id == later.store_id == first.replication_id
    assert ReplicationIds.new(first.store_id).store_id == first.store_id != ReplicationIds.new().store_id


def test_a_store_without_an_id_gets_that_of_its_line() -> None:
    old = ReplicationIds("a" * 40, "b" * 40, 7)
    assert old.with_store() == ReplicationIds("a" * 40, "b" * 40, 7, "a" * 40)
    assert old.with_store().branch(9).with_store().store_id == "a" * 40


def test_a_line_that_is_followed_brings_its_store() -> None:
    ours = ReplicationIds.new()
    assert ours.follow(ours.replication_id, 5, "c" * 40) == ReplicationIds(ours.replication_id, store_id="c" * 40)
    older = (Branch(ours.replication_id, 5),)
    assert ours.follow("a" * 40, 5, "c" * 40) == ReplicationIds("a" * 40, store_id="c" * 40, older=older)


@pytest.mark.parametrize("text", ["", "0" * 39, "g" * 40, "A" * 40])
def test_an_id_is_forty_hexadecimal_digits(text: str) -> None:
    with pytest.raises(ValueError, match="40"):
        ReplicationIds(text)
    if text:
        with pytest.raises(ValueError, match="40"):
            ReplicationIds(NO_ID, store_id=text)


def test_every_history_is_held_up_to_where_it_was_left() -> None:
    ids = [ReplicationIds.new()]
    for offset in (100, 200, 300):
        ids.append(ids[-1].branch(offset))
    for past, offset in zip(ids, (100, 200, 300), strict=False):
        assert ids[-1].holds(past.replication_id, offset)
        assert not ids[-1].holds(past.replication_id, offset + 1)
    assert not ids[-1].holds(NO_ID, 0)


def test_a_log_that_a_crash_has_cut_holds_its_past_up_to_the_cut() -> None:
    first = ReplicationIds.new()
    cut = first.branch(100).branch(90)
    assert cut.holds(first.replication_id, 90)
    assert not cut.holds(first.replication_id, 91)


def test_an_id_with_which_nothing_was_written_is_held_too() -> None:
    idle = ReplicationIds.new().branch(100)
    assert idle.branch(100).holds(idle.replication_id, 100)


def test_a_replica_holds_the_histories_that_it_followed() -> None:
    first = ReplicationIds.new()
    followed = first.follow("a" * 40, 100).follow("b" * 40, 200)
    assert followed.holds(first.replication_id, 100)
    assert not followed.holds(first.replication_id, 101)
    assert followed.holds("a" * 40, 200)


def test_few_histories_are_remembered() -> None:
    ids = [ReplicationIds.new()]
    for offset in range(1, MAX_OLDER + 10):
        ids.append(ids[-1].branch(offset))
    assert len(ids[-1].older) == MAX_OLDER
    assert not ids[-1].holds(ids[0].replication_id, 0)
