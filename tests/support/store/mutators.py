"""Which mutators of the store are called by no case of `mutations`: `python -m tests.support.store.mutators DIRECTORY`.

It runs on the sources, in a process of its own: methods of compiled classes cannot be watched.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.groups.consumers import Members
from riverbed.store.groups.group import Group
from riverbed.store.groups.groups import Groups
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.streams.stream import Stream
from tests.support.servers import ROOT
from tests.support.store.mutations import CASES
from tests.support.store.stores import Store

CLASSES = (Stream, Database, WriteTxn, Idempotence, Members, Group, Groups)


def uncalled_mutators(directory: Path) -> list[str]:
    """What `main` prints for a new store in `directory`: how many mutators there are, and those that no case calls."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    words = [sys.executable, "-m", __name__, str(directory)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()


def main(directory: Path) -> None:
    store = Store(directory)
    missing = set(_mutators())
    sys.stdout.write(f"{len(missing)}\n")

    def watch(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        def spy(*args: Any, **options: Any) -> Any:
            missing.discard((owner, name))
            return original(*args, **options)

        return patch.object(owner, name, spy)

    with ExitStack() as spies:
        for owner, name in sorted(missing, key=str):
            spies.enter_context(watch(owner, name))
        for case in CASES:
            for db in store.txn.databases:
                db.flush()
            case(store)
            assert store.dump(), case.__name__
    store.engine.close()
    sys.stdout.write(" ".join(f"{owner.__name__}.{name}" for owner, name in missing))


def _mutators() -> Iterator[tuple[type, str]]:
    """Every method whose docstring says that it logs something."""
    for owner in CLASSES:
        for name, function in vars(owner).items():
            if inspect.isfunction(function) and re.search(r"\bLogs (?!nothing)", function.__doc__ or ""):
                yield owner, name


if __name__ == "__main__":
    main(Path(sys.argv[1]))
