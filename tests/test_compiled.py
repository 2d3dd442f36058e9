"""No compiled module, and no user of one, has what mypyc changes the meaning of."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mypyc_traps import (
    bound_names,
    closed_classes,
    compiled_modules,
    patches_in_vain,
    traps_in_compiled,
    traps_in_users,
)
from tests.support.servers import ROOT

COMPILED = compiled_modules()
USERS = [
    path
    for folder in ("server", "store", "tools", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path not in COMPILED.values()
]
# The oracle copies the streams of its own model.
COPIES_ITS_OWN = {"tests/support/oracle/oracle.py"}
CLOSED = {name: closed_classes(path.read_text()) for name, path in COMPILED.items()}


def test_the_modules_of_the_list_are_compiled_if_that_is_asked_for() -> None:
    is_asked_for = os.environ.get("RIVERBED_FORM") == "compiled"
    files = {name: str(importlib.import_module(name).__file__) for name in COMPILED}
    assert [name for name, file in files.items() if file.endswith(".so") is not is_asked_for] == []


# Imports each module in a process that has imported nothing of ours, and says how the others end.
IMPORT_EACH = """
import importlib, os, sys
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(name, status)
"""


@pytest.mark.compiled
def test_each_compiled_module_may_be_the_first_to_be_imported() -> None:
    words = [sys.executable, "-c", IMPORT_EACH, *COMPILED]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_continuous_integration_tests_both_forms_and_demands_the_compiled_one() -> None:
    assert "\nif ! make test " in (ROOT / ".ci" / "run").read_text()
    shown = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    steps = [shown.find(step) for step in ("/ruff check", "/pytest -n auto", "RIVERBED_FORM=compiled ")]
    assert -1 not in steps
    assert steps == sorted(steps)
    assert 0 <= shown.find("RIVERBED_COMPILE=1 ") < steps[-1]


def test_the_list_is_in_order_and_names_modules_that_are_there() -> None:
    assert list(COMPILED) == sorted(set(COMPILED))
    assert [name for name, path in COMPILED.items() if not path.is_file()] == []


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_module_means_what_python_means(name: str) -> None:
    assert list(traps_in_compiled(COMPILED[name].read_text())) == []


def test_no_interpreted_class_inherits_from_a_compiled_one_and_no_instance_is_copied() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{trap}" for path in USERS for trap in traps_in_users(path.read_text(), CLOSED)]
    assert [one for one in wrong if one.partition(":")[0] not in COPIES_ITS_OWN] == []


def test_no_test_replaces_what_compiled_modules_contain() -> None:
    paths = [path for folder in ("server", "store", "tools") for path in (ROOT / folder).rglob("*.py")]
    sources = {_module(path): path.read_text() for path in paths}
    bound = bound_names(sources, COMPILED)
    assert len(bound) > 500
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    wrong = [
        f"{path.relative_to(ROOT)}:{trap}"
        for path in sorted(tests)
        for trap in patches_in_vain(path.read_text(), bound, CLOSED)
    ]
    assert wrong == []


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("riverbed", *parts)).removesuffix(".__init__")


FOR_TYPES = "if TYPE_CHECKING:\n    from riverbed.store.ids import Own\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("rest = rest[one() :]", ["1: a call inside a slice"]),
        ("rest = rest[: self.count() + 1]", ["1: a call inside a slice"]),
        ("start = one()\nrest = rest[start:]", []),
        ("rest = rest[len(head) :]", []),
        ("del rows[one() :]", []),
        ("raise LogError() from error", ["1: raise ... from"]),
        ("raise LogError() from None", []),
        ("def f():\n    try: g()\n    except E:\n        yield h()", ["3: a yield inside of except"]),
        ("def f():\n    try: yield g()\n    except E: h()\n    yield h()", []),
        ("rows = (look(key) for key in keys)", ["1: a generator expression that is kept"]),
        ("most = max(look(key) for key in keys)", []),
        (
            FOR_TYPES + "class Row(NamedTuple):\n    own: list[Own] | None",
            ["3: Own is imported for types alone, and a field of Row"],
        ),
        (
            FOR_TYPES + "@dataclass(slots=True)\nclass Row:\n    own: Own",
            ["4: Own is imported for types alone, and a field of Row"],
        ),
        ("from riverbed.store.ids import Own\nclass Row(NamedTuple):\n    own: Own", []),
        (FOR_TYPES + "class Row:\n    own: Own", []),
        ("if __name__ == '__main__':\n    main()", ["1: __name__ is asked for"]),
        ("request.argv = run  # type: ignore[assignment]", ["1: type: ignore"]),
    ],
)
def test_a_planted_trap_is_found_in_a_compiled_module(source: str, found: list[str]) -> None:
    assert list(traps_in_compiled(source)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            "from riverbed.store.ids import Own\nclass Double(Own): ...",
            ["2: Double inherits from Own, which is compiled"],
        ),
        ("from riverbed.store import ids\nclass D(ids.Own): ...", ["2: D inherits from Own, which is compiled"]),
        (
            "from riverbed.store.ids import Own as O\nclass D(O[int]): ...",
            ["2: D inherits from Own, which is compiled"],
        ),
        ("from riverbed.store.ids import Open\nclass Double(Open): ...", []),
        ("import copy\ncopy.copy(request)", ["2: copy.copy"]),
        ("from copy import copy as again\nagain(request)", ["2: again"]),
        ("import weakref\nweakref.ref(group)", ["2: weakref.ref"]),
    ],
)
def test_a_planted_trap_is_found_in_a_user(source: str, found: list[str]) -> None:
    assert list(traps_in_users(source, {"riverbed.store.ids": {"Own"}})) == found


SOURCES = {
    "riverbed.store.ids": """
from riverbed.store.open import FEW, many, look
MOST: Final = 5
some = 3
class Own: ...
def make(): ...
""",
    "riverbed.store.open": "FEW: Final[int] = 2\nmany = 9\ndef look(): ...",
}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('patch.object(ids, "MOST", 1)', "riverbed.store.ids.MOST"),
        ('monkeypatch.setattr(ids, "make", None)', "riverbed.store.ids.make"),
        ('monkeypatch.setattr("riverbed.store.ids.FEW", 1)', "riverbed.store.ids.FEW"),
        ('patch("riverbed.store.ids.MOST", 1)', "riverbed.store.ids.MOST"),
        ('patch.object(ids.Own, "run")', "riverbed.store.ids.Own.run"),
        ('patch("riverbed.store.ids.Own.run")', "riverbed.store.ids.Own.run"),
        *((f'patch.object(ids, "{name}")', None) for name in ("some", "many", "look")),
        *((f'patch("riverbed.store.open.{name}")', None) for name in ("FEW", "many", "look")),
    ],
)
def test_a_planted_patch_in_vain_is_found(source: str, name: str | None) -> None:
    bound = bound_names(SOURCES, {"riverbed.store.ids"})
    assert bound == {f"riverbed.store.ids.{one}" for one in ("FEW", "MOST", "Own", "make")}
    text = "from riverbed.store import ids\n" + source
    found = list(patches_in_vain(text, bound, {"riverbed.store.ids": {"Own"}}))
    assert found == ([] if name is None else [f"2: {name} is replaced in vain"])


def test_classes_that_stay_open_are_told_from_closed_ones() -> None:
    source = "class A: ...\nclass B(Protocol): ...\nclass C(enum.Enum): ...\nclass D(Generic[T]): ...\nclass E(A): ..."
    assert closed_classes(source) == {"A", "D", "E"}
