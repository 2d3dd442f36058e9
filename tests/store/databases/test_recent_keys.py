"""A key is known again soon, and forgotten among very many."""

from __future__ import annotations

from riverbed.store.databases.recent_keys import RecentKeys


def test_a_key_is_known_from_the_second_time_on() -> None:
    recent = RecentKeys()
    assert [recent.note(b"k") for _ in range(3)] == [False, True, True]
    assert not recent.note(b"other")


def test_few_of_very_many_keys_are_known_again() -> None:
    recent = RecentKeys()
    keys = [b"%d" % number for number in range(100_000)]
    assert sum(map(recent.note, keys)) < 10
    assert sum(map(recent.note, keys)) < 10
    assert sum(map(recent.note, [b"k%d" % (number % 50) for number in range(10_000)])) > 5_000
