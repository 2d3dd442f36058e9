"""Names of very many groups are let go of one by one, as they are shown."""

from __future__ import annotations

import gc

from riverbed.store.groups.view import Names


class Name(bytes):
    """A name whose end can be seen."""

    alive = 0

    def __init__(self, *_: object) -> None:
        Name.alive += 1

    def __del__(self) -> None:
        Name.alive -= 1


def test_a_name_that_was_shown_is_let_go_of() -> None:
    names = Names()
    for _ in names.gather((Name(b"%05d" % (7919 * number % 5000)), number, 0) for number in range(5000)):
        pass
    assert names.count == Name.alive == 5000
    shown = []
    for left, (name, number) in zip(range(5000, 0, -1), names.taken(), strict=True):
        shown.append((bytes(name), number))
        assert Name.alive <= left + 20  # one of each part waits for its turn
    del name
    gc.collect()
    assert Name.alive == 0
    assert [name for name, _ in shown] == [b"%05d" % number for number in range(5000)]
    assert all(7919 * number % 5000 == int(name) for name, number in shown)
