"""Kill or stop the server while it rewrites its log and producers write; then hold it to what it had acknowledged.

As `test_crash.py`, with the log rewritten again and again: by the growth rule, and by a client that asks for it.  Some
rounds kill the process that rewrites, and leave the server alone.  `tests/store/log/appending/test_history.py` crashes
the swap of base and manifest at each of its operations; here the moments are chance, and everything else takes part.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import StartRiverbed, base_seed
from tests.support.faults.crashes import FEWEST, Rounds, options_for
from tests.support.faults.ledger import Ledger
from tests.support.faults.producers import finish, start_workers, until_acknowledged
from tests.support.faults.stops import GRACEFUL, KILL, end
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

ROUNDS = 66
SERVERS = 2  # at once, for a round is waiting mostly
LONGEST_S = 0.2
LOG = "appendonlydir"


class Asker(threading.Thread):
    """A client that wants the log rewritten whenever it is not."""

    def __init__(self, server: RiverbedServer) -> None:
        super().__init__(daemon=True)
        self._port = server.port

    def run(self) -> None:
        with contextlib.suppress(OSError), RawClient(self._port, timeout_s=30) as client:
            while client.ask("BGREWRITEAOF"):
                time.sleep(0.02)


def kill_the_process(server: RiverbedServer) -> None:
    """Kill whatever rewrites at this moment, if anything does."""
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def bases_of(server: RiverbedServer) -> set[str]:
    return {path.name for path in (server.directory / LOG).glob("*.base.aof")}


def come_to_the_moment(server: RiverbedServer, number: int, chance: random.Random) -> None:
    """Wait for some moment of a rewrite: any, shortly before the swap, or shortly after it, in turn."""
    before = bases_of(server)
    match number % 3:
        case 0:
            time.sleep(chance.uniform(0, LONGEST_S))
        case 1:
            until(lambda: any((server.directory / LOG).glob("temp-rewrite-*")), "a base that is being written")
            time.sleep(chance.uniform(0, 0.05))
        case _:
            until(lambda: bool(bases_of(server) - before), "a new base")
            time.sleep(chance.uniform(0, 0.02))


def kill_again_and_again(server: RiverbedServer, seed: int) -> Rounds:
    """Half of the rounds, on a server of their own."""
    rule = {"auto-aof-rewrite-min-size": 1 << 16, "auto-aof-rewrite-percentage": 10}
    server.options = options_for(random.Random(seed)) | rule
    server.start()
    rounds = Rounds(server)
    bases: set[str] = set()
    for number in range(ROUNDS // SERVERS):
        chance = random.Random(seed * 1_000 + number)
        ledger = Ledger()
        workers = start_workers(server, ledger, seed * 1_000 + number, number, (1, 16))
        Asker(server).start()
        come_to_the_moment(server, number, chance)
        until_acknowledged(workers, FEWEST)
        if number % 5 == 4:
            kill_the_process(server)
            time.sleep(chance.uniform(0, LONGEST_S))
        end(server, chance.choice(GRACEFUL) if number % 4 == 3 else KILL)
        finish(workers)
        rounds.ledgers.append(ledger)
        bases.update(bases_of(server))
        server.options = options_for(chance) | rule
        if number % 10 == 9:
            shutil.rmtree(server.directory / "state")  # the log must say everything alone
        server.start()
        rounds.check([number], f"seed {seed}, round {number}")
    rounds.check_all(f"seed {seed}")
    rounds.assert_they_prove_something()
    assert len(bases) >= ROUNDS // SERVERS // 3, "rewrites did not come to their end"
    return rounds


def test_nothing_acknowledged_is_lost_when_a_rewrite_is_killed(start_riverbed: StartRiverbed) -> None:
    servers = [start_riverbed() for _ in range(SERVERS)]
    for server in servers:
        server.stop()
    with ThreadPoolExecutor(SERVERS) as threads:
        done = list(threads.map(kill_again_and_again, servers, itertools.count(SERVERS * base_seed())))
    assert sum(len(rounds.ledgers) for rounds in done) == ROUNDS
