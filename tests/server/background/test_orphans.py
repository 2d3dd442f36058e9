"""A process that outlives its server does nothing where the next server works by then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.server.background.worker_modules import REPAIR
from riverbed.server.replication.worker import MODULE as SYNC
from riverbed.store.layout import REPAIR_DIRECTORY
from tests.support.servers import ROOT
from tests.support.store.stores import Store

# Runs the module `sys.argv[1]`.  When it makes its tables, the next server has just deleted `sys.argv[2]`, and made it
# again if `sys.argv[3]` says so.
_LATE = """
import os, runpy, shutil, sys
from riverbed.store.tables import environment

module, place, again = sys.argv[1:4]
sys.argv[1:4] = []
make_directory = environment.make_directory

def make_late(path):
    shutil.rmtree(place)
    if again:
        os.mkdir(place)
    make_directory(path)

environment.make_directory = make_late
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
MAP_BYTES = 1 << 28


@pytest.mark.parametrize("again", ["", "again"])
@pytest.mark.parametrize("module", [SYNC, REPAIR])
def test_no_tables_are_made_in_a_place_that_the_next_server_has_cleared(
    tmp_path: Path, module: str, again: str
) -> None:
    store = Store(tmp_path)
    store.fill(b"s", 10)
    store.commit()
    end = store.engine.log.end
    store.kill()
    place = tmp_path / (REPAIR_DIRECTORY if module == REPAIR else "sync-1-1")
    place.mkdir()
    words = [tmp_path, MAP_BYTES, 100, 4096, 0, 1] if module == REPAIR else [place, MAP_BYTES, MAP_BYTES, 100, 4096]
    command = [sys.executable, "-c", _LATE, module, place, again, *words]
    with subprocess.Popen(
        [str(word) for word in command], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"replay": end}).encode() + b"\n")
        process.stdin.flush()
        said = b""
        while b"failed" not in said and b'"at"' not in said:
            said = process.stdout.readline()
            assert said
    assert b"No such file or directory" in said
    assert place.exists() == bool(again)
    assert not again or not list(place.iterdir())
