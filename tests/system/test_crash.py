"""Kill or stop the server, or cut the power of its disk, while producers write; then hold it to what it acknowledged.

A stop takes nothing, in whichever way it is asked for.  SIGKILL takes the process and leaves what the kernel was given.
The power loss takes that too: the store lies on an ext4 image mounted through a loop device, and the file system is
shut down by ioctl, with its journal flushed or not; pages that were never synced are gone when it is mounted again.

What every round does and checks is in `crashes.py`.  `RIVERBED_SEED=n` or `RIVERBED_SEED=random` runs other rounds than
CI does.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import StartRiverbed, base_seed, broken_invariants
from tests.support.faults.crashes import Rounds, crash_while_writing, options_for
from tests.support.faults.disks import Ext4
from tests.support.faults.stops import GRACEFUL, end
from tests.support.servers import RiverbedServer, Server

KILL_ROUNDS = 50
STOP_ROUNDS = 2 * len(GRACEFUL)
POWER_ROUNDS = 8
IMAGE_BYTES = 256 << 20

# linux/ext4.h: _IOR('X', 125, __u32).  LOGFLUSH writes the journal first, NOLOGFLUSH drops what it has in memory.
EXT4_IOC_SHUTDOWN = 0x8004587D
LOGFLUSH, NOLOGFLUSH = 1, 2


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(start_riverbed: StartRiverbed) -> None:
    seed = base_seed()
    server = start_riverbed(options=options_for(random.Random(seed)))
    rounds = Rounds(server)
    for number in range(KILL_ROUNDS):
        chance = random.Random(seed * 1_000 + number)
        rounds.ledgers.append(crash_while_writing(server, seed * 1_000 + number, number, server.kill))
        server.options = options_for(chance)
        while chance.random() < 0.2:  # killed again while it recovers
            server.spawn()
            time.sleep(chance.uniform(0, 0.5))
            server.kill()
        server.start()
        what = f"seed {seed}, round {number}"
        rounds.check([number, chance.randrange(number + 1)], what)
        if number % 10 == 9:
            rounds.check_all(what)
    rounds.assert_they_prove_something()


def test_nothing_acknowledged_is_lost_when_the_server_stops(start_riverbed: StartRiverbed) -> None:
    seed = base_seed() + 300
    server = start_riverbed(options=options_for(random.Random(seed)))
    rounds = Rounds(server)
    for number in range(STOP_ROUNDS):
        chance = random.Random(seed * 1_000 + number)
        way = GRACEFUL[number % len(GRACEFUL)]
        rounds.ledgers.append(crash_while_writing(server, seed * 1_000 + number, number, partial(end, server, way)))
        server.options = options_for(chance) | {"appendfsync": chance.choice(("always", "everysec", "no"))}
        server.start()
        rounds.check([number, chance.randrange(number + 1)], f"seed {seed}, round {number}, {way}")
    rounds.check_all(f"seed {seed}")
    rounds.assert_they_prove_something()


class PowerSwitch(Ext4):
    """A file system whose power can be cut."""

    def cut(self, flag: int) -> None:
        """From now on every access fails, and nothing more reaches the image."""
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", flag))
        finally:
            os.close(handle)


@pytest.fixture
def power(tmp_path: Path) -> Iterator[PowerSwitch]:
    with PowerSwitch(tmp_path / "disk.img", tmp_path / "disk", IMAGE_BYTES) as switch:
        yield switch


@pytest.mark.needs_root
def test_nothing_acknowledged_is_lost_when_the_power_fails(power: PowerSwitch, tmp_path: Path) -> None:
    seed = base_seed()
    directory = power.directory / "data"
    directory.mkdir()
    os.sync()  # that the directory is there is our promise, not the server's
    with RiverbedServer(directory, tmp_path / "logs", options_for(random.Random(seed))) as server:
        lose_power_repeatedly(server, power, seed)
    assert broken_invariants(server.directory) == []


def note_new_boot(directory: Path) -> None:
    """A machine that comes up again is in another boot; this one stays in its own, and the server can tell."""
    mark = directory / "state" / "in-use"
    assert mark.read_text()
    mark.write_text("another boot")


def lose_power_repeatedly(server: Server, power: PowerSwitch, seed: int) -> Rounds:
    rounds = Rounds(server)
    for number in range(POWER_ROUNDS):
        chance = random.Random(seed * 1_000 + number)
        flag = NOLOGFLUSH if number % 3 else LOGFLUSH

        times: list[float] = []

        def crash(flag: int = flag, times: list[float] = times, after_s: float = chance.choice((0, 0.05))) -> None:
            times.append(time.monotonic())
            power.cut(flag)
            times.append(time.monotonic())
            time.sleep(after_s)  # the server meets a disk that fails, and must not acknowledge any more
            server.kill()

        ledger = crash_while_writing(server, seed * 1_000 + number, number, crash)
        assert list(ledger.lost_disk(*times)) == []
        rounds.ledgers.append(ledger)
        power.unmount()
        power.mount()
        note_new_boot(server.directory)
        server.options = options_for(chance)
        server.start()
        rounds.check_all(f"seed {seed}, round {number}, flag {flag}")
    rounds.assert_they_prove_something()
    return rounds
