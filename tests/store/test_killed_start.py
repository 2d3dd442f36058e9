"""A start that is killed while it executes a long log leaves tables that are whole, and the next one loses nothing."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.store.check import check
from tests.conftest import base_seed
from tests.support.store.stores import Store

ROUNDS = 8
_MANY = 1 << 20
# Starts the store, and dies at the n-th read of its log.
START = """
import os, signal, sys
from pathlib import Path
from riverbed.store.disk.files import OsFiles
from tests.support.store.stores import Store

left = int(sys.argv[2])

class Dying(OsFiles):
    def read_at(self, fd, size, position, /):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.pread(fd, size, position)

Store(Path(sys.argv[1]), files=Dying()).kill()
print(left)
"""


def start(directory: Path, reads: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START, str(directory), str(reads)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_start_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "d", segment_bytes=9 << 20)
    store.fill(b"s", 300)
    for first in (100, 200):
        store.run("XTRIM", "s", "MINID", first)
        store.purge()
        store.checkpoint()
    for number in range(1000, 1240):
        store.add(b"s", f"{number}-0", words=(b"f", b"%d" % number * 25_000))
        store.commit()
    expected = store.dump()
    store.kill()

    shutil.copytree(store.directory, tmp_path / "copy")
    reads = _MANY - int(start(tmp_path / "copy", _MANY).stdout)
    chance = random.Random(base_seed())
    for _ in range(ROUNDS):
        killed = start(store.directory, chance.randrange(1, reads))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert [str(violation) for violation in check(store.directory)] == []
    store.open()
    assert store.engine.recovery.commands >= 240  # all of it is executed in one transaction, and no killed one counts
    assert store.dump() == expected
    store.engine.close()
