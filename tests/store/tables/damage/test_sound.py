"""What is remembered of looks that found no damaged key: stretches that reach into each other are one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from riverbed.store.tables.damage.sound import MOST_STRETCHES, NOWHERE, SoundStretches

_KEYS = 40


def _key(number: int) -> bytes:
    return number.to_bytes(2, "big")


@given(st.lists(st.tuples(st.integers(0, _KEYS - 1), st.integers(0, 6)), max_size=30))
def test_a_key_is_sound_if_a_stretch_has_it(stretches: list[tuple[int, int]]) -> None:
    sound = SoundStretches()
    expected: set[int] = set()
    for first, more in stretches:
        sound.add(_key(first), _key(first + more))
        expected.update(range(first, first + more + 1))
        for number in range(_KEYS + 8):
            assert (_key(number) in sound) == (number in expected)
            assert _key(number) + b"x" not in sound or {number, number + 1} <= expected
    assert len(sound) <= len(stretches)
    sound.forget()
    assert not any(_key(number) in sound for number in range(_KEYS + 8))


def test_stretches_that_meet_are_kept_as_one() -> None:
    sound = SoundStretches()
    for first in (0, 10, 20, 30):
        sound.add(_key(first), _key(first + 5))
    assert len(sound) == 4
    sound.add(_key(5), _key(20))
    assert len(sound) == 2
    sound.add(b"", _key(100))
    assert len(sound) == 1
    assert b"" in sound


def test_what_is_no_stretch_is_not_kept() -> None:
    sound = SoundStretches()
    sound.add(*NOWHERE)
    assert not sound
    assert b"\xff" not in sound


def test_no_more_are_kept_than_there_is_room_for() -> None:
    sound = SoundStretches()
    numbers = list(range(0, 6 * MOST_STRETCHES, 3))
    random.Random(1).shuffle(numbers)
    for added, number in enumerate([*numbers, numbers[0] + 1], 1):
        sound.add(_key(number), _key(number))
        assert len(sound) == min(added, MOST_STRETCHES)
        assert _key(number) in sound
    assert not any(_key(number + 2) in sound for number in numbers)
    sound.add(b"", _key(max(numbers)))
    assert len(sound) == 1
