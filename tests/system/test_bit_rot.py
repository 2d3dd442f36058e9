"""A flipped bit of a stored file is never answered as if it were data, and no new log is made of it.

`python -m tests.support.faults.bit_rot` and `row_rot` flip many more; `docs/reliability.md` has what became of them.
"""

from __future__ import annotations

import pytest

from tests.support.faults import row_rot
from tests.support.faults.bit_rot import BAD, Rot
from tests.support.faults.row_rot import RowRot

# Among them, of the tables: flips in values, IDs, stream rows, runs, and one in the key of an entry (48).  Those of the
# second row were answered wrongly once: keys of entries (1246, 3068), consumers (1262, 1488), streams (3711) and inside
# the tree (2702, 3641), and lengths of keys and rows (3481, 3642, 4228).
FLIPS = {
    "data.mdb": [
        *(4, 6, 12, 21, 22, 24, 35, 39, 42, 48),
        *(1246, 1262, 1488, 2702, 3068, 3481, 3641, 3642, 3711, 4228, 7411),
    ],
    "base": [1, 2],
    "manifest": [1, 2],
    "snapshot": [1, 2],
}


@pytest.fixture(scope="module")
def rot(tmp_path_factory: pytest.TempPathFactory) -> Rot:
    return Rot(tmp_path_factory.mktemp("rot"))


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, seeds in FLIPS.items() for seed in seeds])
def test_no_flipped_bit_is_answered_as_data_or_taken_into_a_new_log(rot: Rot, kind: str, seed: int) -> None:
    verdicts, told = rot.flip(kind, seed)
    assert verdicts.isdisjoint(BAD), told


def test_damage_is_answered_with_errors_and_stops_a_rewrite(rot: Rot) -> None:
    assert any(rot.flip("data.mdb", seed)[0] == {"error"} for seed in range(20))


def test_a_command_that_meets_a_damaged_row_does_it_or_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    rot = RowRot(tmp_path_factory.mktemp("rows"))
    found = [rot.flip(seed) for seed in range(40)]
    assert [told for verdicts, told in found if not verdicts.isdisjoint(row_rot.BAD)] == []
    assert {"unseen", "error", "refused"} <= set().union(*(verdicts for verdicts, _ in found))
