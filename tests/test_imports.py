"""The folders have an order, and no two modules name each other, even when imports for types alone are counted."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
FOLDERS = ("riverbed.store", "riverbed.server", "riverbed.tools")


def contract_of(folder: str) -> dict[str, Any]:
    settings = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]
    (contract,) = [one for one in settings["contracts"] if one.get("containers") == [folder]]
    return contract


def layers(contract: dict[str, Any]) -> list[grimp.Layer]:
    return [grimp.Layer(*(name.strip() for name in row.split("|")), independent=True) for row in contract["layers"]]


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_folder_names_for_types_is_below_it_as_well(folder: str) -> None:
    contract = contract_of(folder)
    assert contract["exhaustive"]
    graph = grimp.build_graph("riverbed", exclude_type_checking_imports=False, cache_dir=None)
    broken = graph.find_illegal_dependencies_for_layers(layers(contract), containers={folder})
    assert {(found.importer, found.imported) for found in broken} == set()


def circles(graph: grimp.ImportGraph, modules: set[str]) -> set[str]:
    """What is left when modules that name none of the others, or that none of them names, are taken away in turn.

    A package that imports an extension module of its own names itself, as far as can be seen in Python.
    """
    left = set(modules)
    while done := {
        module
        for module in left
        if not graph.find_modules_directly_imported_by(module) & (left - {module})
        or not graph.find_modules_that_directly_import(module) & (left - {module})
    }:
        left -= done
    return left


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_two_modules_of_a_folder_name_each_other(folder: str) -> None:
    graph = grimp.build_graph("riverbed", exclude_type_checking_imports=False, cache_dir=None)
    assert circles(graph, graph.find_descendants(folder)) == set()
