"""What the scrubs have found, beside threads that forget it."""

from __future__ import annotations

from collections.abc import Iterator, Set

from riverbed.server.stats.scrub_status import ScrubStatus


class Meanwhile(Set[str]):
    """The names that stay, at whose sight a thread forgets the damage of `gone`."""

    def __init__(self, status: ScrubStatus, gone: str, *names: str) -> None:
        self._status = status
        self._gone = gone
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        self._status.damage.pop(self._gone, None)
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def test_damage_that_a_thread_forgets_meanwhile_is_forgotten() -> None:
    status = ScrubStatus()
    status.damage = {"gone": "a", "repaired": "b", "there": "c"}
    status.keep(Meanwhile(status, "repaired", "there"))
    assert status.damage == {"there": "c"}
