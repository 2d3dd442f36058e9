"""Tests are shared out so that those with a common server or a common Spark stay together."""

from __future__ import annotations

import pytest

from tests.support.parallel import ONE_BY_ONE, SHARING, TOGETHER, share_of
from tests.support.servers import ROOT


def test_a_file_stays_together_and_so_does_all_of_spark() -> None:
    assert share_of("tests/store/test_ids.py::test_one[a::b]") == share_of("tests/store/test_ids.py::test_two")
    assert share_of("tests/store/test_ids.py::test_one") != share_of("tests/store/test_swap.py::test_one")
    assert share_of(f"{TOGETHER}test_source.py::test_one") == share_of(f"{TOGETHER}jobs/test_rates.py::test_one")


def test_tests_of_the_whole_are_shared_out_one_by_one() -> None:
    assert share_of(f"{ONE_BY_ONE}test_crash.py::test_one[1]") != share_of(f"{ONE_BY_ONE}test_crash.py::test_one[2]")


@pytest.mark.parametrize("file", sorted(SHARING))
def test_tests_of_the_whole_that_share_something_costly_stay_together(file: str) -> None:
    assert (ROOT / file).exists()
    assert share_of(f"{file}::test_one") == share_of(f"{file}::test_two[a::b]") == file


@pytest.mark.parametrize("folder", [ONE_BY_ONE, TOGETHER])
def test_the_folders_it_speaks_of_exist(folder: str) -> None:
    assert list((ROOT / folder).rglob("test_*.py"))
