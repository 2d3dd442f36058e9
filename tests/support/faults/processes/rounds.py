"""Rounds of clients, faults and ends of a real server, with one account of what it acknowledged.

    python -m tests.support.faults.processes.rounds --rounds 500 --seed 1      exit status 1 when a promise was broken

In each round producers and the consumers of a group work, one strike of `strikes.py` hits the server, and it ends by
one of the ways of `stops.py`; sometimes a call fails while it starts again.  Then every entry that was acknowledged in
this round and in an earlier one must be there, every refused one not, and every entry behind the group be acknowledged
or pending.  A server may refuse to go on, and say so; it may not hang, end by a signal that was not sent, or raise what
it does not handle.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.faults import client_threads, group_storm
from tests.support.faults.crashes import options_for
from tests.support.faults.disks import small_tmpfs
from tests.support.faults.ledger import Fate, Ledger
from tests.support.faults.processes import failing_calls
from tests.support.faults.processes.failing_calls import FailingCalls
from tests.support.faults.processes.memory_groups import MemoryGroup
from tests.support.faults.processes.strikes import STRIKES, Target, fail_a_call, fill_the_disk
from tests.support.faults.producers import SHARED, Worker, finish, read_streams, start_workers
from tests.support.faults.stops import COMMANDS, KILL, SIGNALS, WAYS
from tests.support.replicas import until_level
from tests.support.servers import PATIENCE_S, RiverbedServer, StartError
from tests.support.waiting import until

FEWEST, MOST = 10, 250  # acknowledged before a strike; counted and not timed
CONSUMERS = 3
ROUNDS_OF_A_STORE = 25  # what is written must be read back
DISK_BYTES = 512 << 20
_DEFECTS = (b"Traceback", b"never retrieved", b"Fatal Python error", b"AssertionError")
# What a process without memory says is as clear as any word.
_SHORTAGES = (b"MemoryError", b"can't start new thread", b"Cannot allocate memory")
_AFTERWARDS_S = 0.2


class Store:
    """One data directory, with the accounts of the rounds on it; the library of failing calls is given compiled."""

    def __init__(self, place: Path, library: Path, disk: Path | None, told: Counter[str]) -> None:
        directory = (disk or place) / "data"
        directory.mkdir(parents=True)
        (place / "replica").mkdir(parents=True)
        calls = FailingCalls(library, place / "calls", directory)
        self.server = RiverbedServer(directory, place / "logs")
        self.server.environment = calls.environment
        self.replica = RiverbedServer(place / "replica", place / "logs", {"appendfsync": "no"})
        self.target = Target(self.server, calls, disk, self.replica, _memory_group())
        self.told = told
        self.ledgers: list[Ledger] = []
        self._log_read = 0
        self._killed = 0
        self._broken: list[str] = []

    def close(self) -> None:
        self.server.kill()
        self.replica.kill()
        if self.target.group is not None:
            self.told["killed for want of memory"] += self.target.group.killed()
            self.target.group.close()
        self.told.update({f"failed calls: {call}": count for call, count in self.target.calls.failed().items()})

    # -- one round -----------------------------------------------------------------------------------------------------

    def round(self, number: int, seed: int) -> list[str]:
        """-> what was broken."""
        chance = random.Random(seed)
        self._broken = []
        if self.server.process is None:
            self._start(chance)
        if self.replica.process is None:
            self.replica.start()
        ledger, group, key = Ledger(), [], f"{number}:jobs"
        self.ledgers.append(ledger)
        with self.server.client() as client:
            assert client.ask("XGROUP", "CREATE", key, group_storm.SHARED_GROUP, 0, "MKSTREAM") == b"+OK\r\n"
        producers = start_workers(self.server, ledger, seed, number, (1, 4, 16))
        group = [group_storm.Worker(self.server, seed * 10 + n, key, f"worker{n}") for n in range(CONSUMERS)]
        for consumer in group:
            consumer.start()
        self._until_acknowledged(producers, chance.randint(FEWEST, MOST))
        strikes = (*STRIKES, fill_the_disk, fill_the_disk) if self.target.disk else STRIKES
        strike = chance.choice(strikes)(self.target, chance) if self._lives() else "none"
        time.sleep(chance.uniform(0.02, _AFTERWARDS_S))
        way = self._end(chance.choice(WAYS))
        finish(producers)
        client_threads.finish(group)
        what = f"seed {seed}, {strike}, {way}"
        self._start(chance)
        self._judge(number, chance, [consumer.notes for consumer in group], key)
        self.told.update({"rounds": 1, f"strike: {strike}": 1, f"end: {way}": 1})
        self.told["operations"] += sum(len(account.adds) + len(account.deletes) for account in ledger.accounts)
        self.told["acknowledged"] += ledger.count(Fate.ACKNOWLEDGED)
        self.told["refused"] += ledger.count(Fate.FAILED)
        self.told["without an answer"] += ledger.count(Fate.UNKNOWN)
        self.told["deliveries"] += sum(len(consumer.notes.given) for consumer in group)
        self.told["complaints"] += len(self._broken)
        return [f"{what}: {line}" for line in self._broken]

    def _until_acknowledged(self, producers: Sequence[Worker], count: int) -> None:
        def is_reached() -> bool:
            is_over = not any(producer.is_alive() for producer in producers[:-1])
            return is_over or sum(producer.acknowledged for producer in producers) >= count

        until(is_reached, f"{count} entries that are acknowledged")

    def _lives(self) -> bool:
        return self.server.process is not None and self.server.process.poll() is None

    # -- ends and starts -----------------------------------------------------------------------------------------------

    def _end(self, way: str) -> str:
        """End the server, whatever is wrong with it; -> the way in which it ended."""
        process = self.server.process
        assert process is not None
        is_faulty = bool(self.target.calls.failed())
        if self._lives() and (way == KILL or (way in COMMANDS and self._is_refused(way))):
            self.server.kill()
        elif self._lives():
            with contextlib.suppress(ProcessLookupError):
                if way == "HUP":
                    process.send_signal(signal.SIGHUP)
                if way not in COMMANDS:
                    process.send_signal(SIGNALS.get(way, signal.SIGTERM))
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._broken.append(f"hangs on {way}\n{self.server.log_tail()}")
                self.server.kill()
        if self.server.process is not None:
            status = process.wait()
            self.server.process = None
            wanted_memory = self._was_killed_for_memory()
            # a server that is giving up already has no handler any more
            was_sent = -status == SIGNALS.get(way, signal.SIGTERM) and "; stopping" in self.server.log_text()
            if status == -signal.SIGKILL and wanted_memory:
                self.told["servers killed for want of memory"] += 1
            elif status < 0 and not was_sent:
                self._broken.append(f"ended by signal {-status}\n{self.server.log_tail()}")
            elif status and not is_faulty and not self.target.calls.failed():
                self.told["ended with an error"] += 1
        self.target.calls.forgive()
        self._empty_the_disk()
        self._look_for_defects()
        return way

    def _was_killed_for_memory(self) -> bool:
        """Whether the kernel has killed a process of the server since it was last asked."""
        group = self.target.group
        before, self._killed = self._killed, 0 if group is None else group.killed()
        return self._killed > before

    def _is_refused(self, way: str) -> bool:
        """Ask for a stop; -> whether the server said no, or could not be asked."""
        try:
            with self.server.client(timeout_s=PATIENCE_S) as client:
                client.send(*way.split())
                return client.socket.recv(1 << 16) != b""
        except ConnectionResetError:
            return False
        except OSError:
            return self._lives()

    def _empty_the_disk(self) -> None:
        if self.target.disk is not None:
            (self.target.disk / "ballast").unlink(missing_ok=True)

    def _look_for_defects(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            data = self.server.log_path.read_bytes()
            new, self._log_read = data[self._log_read :], len(data)
            if any(word in new for word in _SHORTAGES):
                return
            for defect in _DEFECTS:
                if defect in new:
                    self._broken.append(f"{defect.decode()} in its log\n{new[-6000:].decode(errors='replace')}")
                    return

    def _start(self, chance: random.Random) -> None:
        self.server.options = options_for(chance) | {"appendfsync": chance.choice(("always", "always", "everysec"))}
        if self.ledgers and chance.random() < 0.4:
            fault = fail_a_call(self.target, chance)
            self.told[f"at a start: {fault}"] += 1
            with contextlib.suppress(StartError):
                self._launch()
            if self.server.process is not None:
                self._end(chance.choice((KILL, "TERM")))
            self.target.calls.forgive()
            self._look_for_defects()
        if self.ledgers and chance.random() < 0.3:
            shutil.rmtree(self.server.directory / "state")
            self.told["started from the log alone"] += 1
        self._launch()

    def _launch(self) -> None:
        """Start it in its group from its first moment; what it has allocated before would not count."""
        self.server.spawn()
        if self.target.group is not None:
            self.target.group.add(self.server.pid)
        self.server.wait_ready()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def _judge(self, number: int, chance: random.Random, notes: Sequence[group_storm.Notes], key: str) -> None:
        earlier = chance.randrange(len(self.ledgers))
        for ledger in dict.fromkeys((len(self.ledgers) - 1, earlier)):
            streams = self.ledgers[ledger].streams() - {SHARED}
            self._broken += self.ledgers[ledger].verify(read_streams(self.server, streams), streams)
        everything = Ledger(account for ledger in self.ledgers for account in ledger.accounts)
        self._broken += everything.verify(read_streams(self.server, {SHARED}), {SHARED})
        self._broken += group_storm.complaints_of_workers(self.server, key, notes)
        if chance.random() < 0.2:
            self._compare_the_replica()

    def _compare_the_replica(self) -> None:
        """A replica that came through all this has what its primary has."""
        with self.replica.client() as client:
            client.ask("REPLICAOF", "127.0.0.1", self.server.port)
        until_level(self.server, self.replica)
        digests = []
        for server in (self.server, self.replica):
            with server.client() as client:
                digests.append(client.ask("DEBUG", "DIGEST"))
        if digests[0] != digests[1]:
            self._broken.append(f"the replica has another digest: {digests}")
        self.told["replicas compared"] += 1


def _memory_group() -> MemoryGroup | None:
    """None where the system lets us make none: then the rounds limit address space alone."""
    try:
        return MemoryGroup()
    except OSError:
        return None


def run(place: Path, rounds: int, seed: int, told: Counter[str], disk: Path | None = None) -> Iterator[str]:
    """Yield what was broken, in `rounds` rounds; what was done is counted in `told`."""
    library = failing_calls.build(place)
    for first in range(0, rounds, ROUNDS_OF_A_STORE):
        folder = place / f"store-{first}"
        store = Store(folder, library, disk, told)
        try:
            for number in range(first, min(first + ROUNDS_OF_A_STORE, rounds)):
                yield from store.round(number, seed * 1_000 + number)
        except AssertionError as error:  # no start, no reply in time, replies that are none: the store is given up
            yield f"seed {seed * 1_000 + number}: {error}\n{store.server.log_tail()}"
        finally:
            store.close()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(store.server.directory, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full-disk", action="store_true", help="on a tmpfs that is filled now and then; needs root")
    parser.add_argument("--until-found", action="store_true", help="stop at the first promise that is broken")
    asked = parser.parse_args()
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="riverbed-rounds-") as place, contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_tmpfs(Path(place) / "disk", DISK_BYTES)) if asked.full_disk else None
        broken, first = 0, ""
        for line in run(Path(place), asked.rounds, asked.seed, told, disk):
            broken += 1
            first = first or f", the first by {line.splitlines()[0]}"
            sys.stdout.write(line.replace("\n", "\n    ") + "\n")
            sys.stdout.flush()
            if asked.until_found:
                break
    for name, count in sorted(told.items()):
        sys.stdout.write(f"{count:8} {name}\n")
    sys.stdout.write(f"{broken} promises broken{first}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
