"""The simulation and the loops find bugs that were planted: each run tries the next two of them, by the day.

`make mutants` tries all of them; `docs/reliability.md` has what was found by what.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.mutants import PATCHES, Finding, Mutant, find, mutants, part_of
from tests.support.servers import ROOT

pytestmark = pytest.mark.once  # bugs are planted into a copy of the sources, which is never compiled

ALL = mutants()
TRIED_AT_ONCE = 2
# A quiet machine takes a few seconds for most of them; tests that run beside this one take the rest.
PATIENCE_S = 900.0
MAX_IN_A_FOLDER = 12
_DAY_S = 86_400


def todays(day: int) -> list[Mutant]:
    return part_of(ALL, day, -(-len(ALL) // TRIED_AT_ONCE))


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits_the_code(mutant: Mutant) -> None:
    assert mutant.misfit() == "", "make the patch again, so that it plants the same bug in the code as it is now"
    assert mutant.missing_finders() == []


def test_thirty_bugs_are_planted_in_folders_that_are_not_too_large() -> None:
    assert len(ALL) >= 30
    assert len({mutant.bug for mutant in ALL}) == len(ALL)
    assert max(Counter(mutant.path.parent for mutant in ALL).values()) <= MAX_IN_A_FOLDER


def test_every_planted_bug_has_its_turn() -> None:
    days = -(-len(ALL) // TRIED_AT_ONCE)
    tried = [mutant for day in range(days) for mutant in todays(day)]
    assert sorted(mutant.name for mutant in tried) == sorted(mutant.name for mutant in ALL)


@pytest.mark.parametrize("number", range(TRIED_AT_ONCE))
def test_a_planted_bug_is_found(number: int) -> None:
    chosen = todays(int(time.time()) // _DAY_S)
    if number < len(chosen):  # the last part may be a shorter one
        finding = find(chosen[number], PATIENCE_S)
        assert finding.by, f"{finding.row} {finding.said}"


def test_a_patch_that_does_not_fit_is_not_taken_for_a_find(tmp_path: Path) -> None:
    path = tmp_path / "gone.patch"
    path.write_text(
        "Bug: none\nFinder: simulation\n--- a/store/ids.py\n+++ b/store/ids.py\n"
        "@@ -1,1 +1,1 @@\n-a line that is not there\n+another one\n"
    )
    mutant = Mutant.read(path)
    assert "does not apply" in mutant.misfit()
    finding = find(mutant, PATIENCE_S)
    assert finding == Finding(mutant, said=finding.said)
    assert "does not apply" in finding.said


def test_a_patch_says_what_it_does_and_what_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "silent.patch"
    path.write_text("--- a/store/ids.py\n")
    with pytest.raises(ValueError, match="begin it with a line"):
        Mutant.read(path)
    assert PATCHES.is_relative_to(ROOT)
