"""The store's folders have an order even when imports for types alone are counted."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grimp

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def store_contract() -> dict[str, Any]:
    settings = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]
    (contract,) = [one for one in settings["contracts"] if one.get("containers") == ["riverbed.store"]]
    return contract


def layers(contract: dict[str, Any]) -> list[grimp.Layer]:
    return [grimp.Layer(*(name.strip() for name in row.split("|")), independent=True) for row in contract["layers"]]


def test_what_a_folder_of_the_store_names_for_types_is_below_it_as_well() -> None:
    contract = store_contract()
    assert contract["exhaustive"]
    graph = grimp.build_graph("riverbed", exclude_type_checking_imports=False, cache_dir=None)
    broken = graph.find_illegal_dependencies_for_layers(layers(contract), containers={"riverbed.store"})
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


def test_no_two_modules_of_the_store_name_each_other() -> None:
    graph = grimp.build_graph("riverbed", exclude_type_checking_imports=False, cache_dir=None)
    assert circles(graph, graph.find_descendants("riverbed.store")) == set()
