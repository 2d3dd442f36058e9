"""Each key has its turn before those that come meanwhile."""

from __future__ import annotations

from riverbed.store.databases.turns import Turns


def test_keys_have_their_turns_in_order_and_newer_ones_behind_them() -> None:
    held = dict.fromkeys((b"d", b"b", b"f", b"e"))
    turns = Turns(held, sorted)
    assert turns.take(2) == [b"b", b"d"]
    held |= dict.fromkeys((b"a", b"c"))
    assert turns.take(2) == [b"e", b"f"]
    assert turns.take(9) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_few_keys_are_not_left_alone() -> None:
    held = dict.fromkeys(b"%03d" % number for number in range(100))
    turns = Turns(held, sorted)
    assert [len(turns.take(30)) for _ in range(6)] == [30, 30, 40, 30, 30, 40]
    for number in range(0, 60, 2):
        del held[b"%03d" % number]
    assert [len(turns.take(30)) for _ in range(4)] == [30, 40, 30, 40]


def test_a_key_that_is_gone_has_no_turn() -> None:
    held = dict.fromkeys(b"%03d" % number for number in range(100))
    turns = Turns(held, sorted)
    assert turns.take(1) == [b"000"]
    for number in range(99):
        del held[b"%03d" % number]
    assert turns.take(10) == [b"099"]
    assert turns.take(10) == [b"099"]
    held.clear()
    assert turns.take(10) == []
    held[b"new"] = None
    assert turns.take(10) == [b"new"]


def test_keys_have_their_turns_in_the_order_of_the_dict() -> None:
    held = dict.fromkeys((b"d", b"b", b"f", b"e"))
    turns = Turns(held, list)
    assert turns.take(2) == [b"d", b"b"]
    held[b"a"] = None
    assert turns.take(2) == [b"f", b"e"]
    assert turns.take(9) == [b"d", b"b", b"f", b"e", b"a"]


def test_keys_that_are_given_back_come_next() -> None:
    held = dict.fromkeys(b"%d" % number for number in range(9))
    turns = Turns(held, sorted)
    assert turns.take(4) == [b"0", b"1", b"2", b"3"]
    turns.give_back([b"2", b"3"])
    assert turns.take(3) == [b"2", b"3", b"4"]
