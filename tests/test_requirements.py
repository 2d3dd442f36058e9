"""The versions that `make` installs: each dependency is locked with hashes, and the tests run with the locked one."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.servers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUN = [*PROJECT["dependencies"], *EXTRAS["build"]]
COMPILE = [*RUN, *EXTRAS["compile"]]
TEST = [*COMPILE, *EXTRAS["test"], *EXTRAS["sql"], *EXTRAS["spark"]]
LOCKED_BY = {"run": RUN, "compile": COMPILE, "test": TEST, "bench": [*TEST, *EXTRAS["bench"]]}


def test_every_extra_is_locked() -> None:
    assert set(EXTRAS) == {"build", "compile", "test", "sql", "spark", "bench"}


def blocks(name: str) -> list[str]:
    """Each requirement of a lock file with its hashes, as one line."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def locked(name: str) -> dict[str, Requirement]:
    """The requirements of a lock file that hold for this Python and platform, by name."""
    found = [Requirement(block.split("--hash", 1)[0]) for block in blocks(name)]
    return {canonicalize_name(one.name): one for one in found if one.marker is None or one.marker.evaluate()}


@pytest.mark.parametrize("name", LOCKED_BY)
def test_every_requirement_is_one_version_with_hashes(name: str) -> None:
    for block in blocks(name):
        requirement, *hashes = block.split("--hash=")
        assert [one.operator for one in Requirement(requirement).specifier] == ["=="], requirement
        assert hashes and all(one.startswith("sha256:") for one in hashes), requirement


@pytest.mark.parametrize("name", LOCKED_BY)
def test_every_dependency_is_locked_to_a_version_that_pyproject_allows(name: str) -> None:
    pinned = locked(name)
    for line in LOCKED_BY[name]:
        wanted = Requirement(line)
        (pin,) = pinned[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), line


def test_no_duckdb_is_allowed_that_lacks_what_is_called() -> None:
    """`to_arrow_reader`, in `tools/arrow.py`, is new in 1.5."""
    wanted = [Requirement(line) for lines in EXTRAS.values() for line in lines if line.startswith("duckdb")]
    assert wanted
    assert [str(one) for one in wanted if one.specifier.contains("1.4.4")] == []


@pytest.mark.parametrize(("narrow", "wide"), [("run", "compile"), ("compile", "test"), ("test", "bench")])
def test_the_wider_file_locks_the_same_versions(narrow: str, wide: str) -> None:
    few, many = locked(narrow), locked(wide)
    assert {name: many[name].specifier for name in few} == {name: one.specifier for name, one in few.items()}


def test_the_tests_run_with_the_locked_versions() -> None:
    for name, requirement in locked("test").items():
        (pin,) = requirement.specifier
        assert version(name) == pin.version, f"{name}: run `make .venv/installed-test`"
