"""Flips one bit of a stopped store, starts on what is left, reads everything, and says what became of the bit.

    python -m tests.support.faults.bit_rot [--flips N] [--seed S] [KIND ...]

    unseen      every answer is right
    error       some answers are errors, and the rest are right
    refused     the start, or the opening of the snapshot, fails with an error
    wrong       an answer is neither right nor an error, or is not RESP
    laundered   a log was made of the damaged tables, and the new base, loaded alone, answers wrongly
    killed      the process died, or did not end

Each flip has a process of its own, a fork of one that has imported the product, as damage may kill it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import lmdb

from riverbed.server.errors import CommandError
from riverbed.store.errors import StoreError
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.progress import ignore
from riverbed.store.rewrite.log_from_tables import rebuild_log
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.restore import restore_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from tests.support.in_process import HandClock, Product, Words

KINDS = ("data.mdb", "log", "base", "manifest", "snapshot")
VERDICTS = ("unseen", "error", "refused", "wrong", "laundered", "killed")
BAD = VERDICTS[3:]
_DEADLINE_S = 60
_SNAPSHOT = "snapshots/one"


def build(directory: Path) -> None:
    """A store with every kind of row: a base, a log behind it, and a snapshot; closed cleanly."""
    rng = random.Random(7)
    product = Product(directory, HandClock(), node_max_entries=20)
    run = product.run
    for name in ("one", "two", "three"):
        for number in range(1, 301):
            fields = ["f", rng.randbytes(rng.choice((4, 20, 60))), "n", number]
            run("XADD", name, f"{number * 10}-{number % 3}", *fields)
        run("XDEL", name, "50-2", "60-0", "3000-0")
    run("XADD", "large", "1-1", "f", rng.randbytes(20_000))
    run("XADD", "large", "2-1", "f", rng.randbytes(3_000))
    run("SELECT", 3)
    run("XADD", "of-three", "1-1", "f", "v")
    run("SELECT", 0)
    run("XADD", "kept", "1-1", "f", "v")
    run("PEXPIREAT", "kept", product.clock.now_ms + 10_000_000)
    run("XADD", "long" * 150, "1-1", "f", "v")
    run("XADD", "once", "IDMP", "producer", "first", "*", "f", "v")
    for group in ("g", "h"):
        run("XGROUP", "CREATE", "one", group, 0)
        for consumer in ("Alice", "Bob"):
            run("XREADGROUP", "GROUP", group, consumer, "COUNT", 120, "STREAMS", "one", ">")
            product.clock.now_ms += 5
        run("XACK", "one", group, "10-1", "20-2", "500-2")
    run("XCLAIM", "one", "g", "Bob", 0, "30-0", "70-1")
    run("XGROUP", "POLICY", "one", "h", "CONSUMERTTL", 10_000_000)
    product.close()
    rewrite(directory)
    product = Product(directory, product.clock, node_max_entries=20)
    for number in range(301, 401):
        product.run("XADD", "two", f"{number * 10}-0", "f", rng.randbytes(30))
    product.run("XTRIM", "three", "MAXLEN", 20)  # rows that wait for the purge
    product.close()
    take_snapshot(directory, directory / _SNAPSHOT, program="a test")


def rewrite(directory: Path) -> None:
    """Make a log of the tables, as a rewrite writes it."""
    shutil.rmtree(directory / "appendonlydir")
    rebuild_log(directory, now_ms=1_700_000_000_000, map_bytes=1 << 28)


def questions() -> Iterator[tuple[int, Words]]:
    """What is asked: the number of the database, and the command."""
    for name in ("one", "two", "three", "large", "kept", "long" * 150, "once"):
        key = name.encode()
        for words in (
            ["XLEN"], ["XRANGE", "-", "+"], ["XREVRANGE", "+", "-", "COUNT", "50"],
            ["XRANGE", "100-0", "900-9", "COUNT", "30"], ["XINFO", "FULL"], ["PEXPIRETIME"], ["TYPE"],
        ):  # fmt: skip
            if words[0] == "XINFO":
                yield 0, [b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"]
            else:
                yield 0, [words[0].encode(), key, *(word.encode() for word in words[1:])]
    for number in range(1, 300, 7):
        entry_id = b"%d-%d" % (number * 10, number % 3)
        yield 0, [b"XRANGE", b"one", entry_id, entry_id]
    yield 0, [b"XREAD", b"COUNT", b"100", b"STREAMS", b"two", b"three", b"0", b"0"]
    for group in (b"g", b"h"):
        yield 0, [b"XPENDING", b"one", group]
        yield 0, [b"XPENDING", b"one", group, b"-", b"+", b"500"]
        yield 0, [b"XPENDING", b"one", group, b"-", b"+", b"500", b"Bob"]
        yield 0, [b"XREADGROUP", b"GROUP", group, b"Alice", b"COUNT", b"90", b"STREAMS", b"one", b"0"]
        yield 0, [b"XREADGROUP", b"GROUP", group, b"Bob", b"COUNT", b"10", b"STREAMS", b"one", b"0"]
    yield 0, [b"SCAN", b"0", b"COUNT", b"100"]
    yield 0, [b"DBSIZE"]
    yield 3, [b"XRANGE", b"of-three", b"-", b"+"]
    yield 3, [b"DBSIZE"]
    yield 0, [b"XADD", b"once", b"IDMP", b"producer", b"first", b"*", b"f", b"v"]
    yield 0, [b"XREADGROUP", b"GROUP", b"g", b"New", b"COUNT", b"5", b"STREAMS", b"one", b">"]


def answers(product: Product) -> list[Any]:
    found = []
    for number, words in questions():
        product.run("SELECT", number)
        try:
            found.append(product.execute(words))
        except CommandError as error:
            found.append(f"-{error.text!r}")
        except (AssertionError, IndexError, UnicodeDecodeError) as error:
            # what the product raises becomes an error reply of the server; what the parser raises does not
            found.append(f"-{error!r}" if not _is_parser(error) else f"no RESP: {error!r}")
        except Exception as error:
            found.append(f"-{error!r}")
            product.engine.rollback(product.clock.now_ms)
    return found


def _is_parser(error: Exception) -> bool:
    at, last = error.__traceback__, ""
    while at is not None:
        last, at = at.tb_frame.f_code.co_filename, at.tb_next
    return last.endswith(("raw.py", "in_process.py"))


def compare(found: list[Any], expected: list[Any]) -> tuple[str, str]:
    """-> (one of `unseen`, `error` and `wrong`, the first such answer)"""
    verdict, shown = "unseen", ""
    for (_, words), mine, right in zip(questions(), found, expected, strict=True):
        if mine != right:
            text = f"{words[:3]!r} gives {str(mine)[:200]!r}"
            if not _is_error(mine):
                return "wrong", text
            verdict, shown = "error", shown or text
    return verdict, shown


def _is_error(answer: Any) -> bool:
    return isinstance(answer, str) and answer.startswith("-")


def started(directory: Path) -> list[Any]:
    """The answers of a start in `directory`.  Raises what a start refuses with."""
    return answers(Product(directory, HandClock(1_700_000_010_000), node_max_entries=20))


def from_log(directory: Path) -> list[Any]:
    shutil.rmtree(directory / "state")
    return started(directory)


def from_rewrite(directory: Path) -> list[Any]:
    rewrite(directory)
    return from_log(directory)


def from_snapshot(directory: Path) -> list[Any]:
    snapshot = open_snapshot(directory / _SNAPSHOT)
    into = directory / "restored"
    into.mkdir()
    restore_snapshot(snapshot, into, steps=ignore)
    return started(into)


_READ = {"data.mdb": started, "log": from_log, "base": from_log, "manifest": from_log, "snapshot": from_snapshot}


class Rot:
    """A store, and what its parts answer when they are whole."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._whole = work / "whole"
        build(self._whole)
        self._expected = {kind: self._in_copy(read) for kind, read in _READ.items()}
        self._rewritten = self._in_copy(from_rewrite)

    def _in_copy(self, read: Callable[[Path], list[Any]]) -> list[Any]:
        """What `read` finds in a copy, in a process of its own."""
        return in_child(lambda: read(self._copy()))

    def _copy(self) -> Path:
        copy = self._work / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._whole, copy)
        return copy

    def files(self, kind: str) -> list[Path]:
        log = self._whole / "appendonlydir"
        match kind:
            case "data.mdb":
                return [self._whole / "state/data.mdb"]
            case "log":
                return sorted(log.glob("*.incr.aof"))
            case "base":
                return sorted(log.glob("*.base.aof"))
            case "manifest":
                return sorted(log.glob("*.manifest"))
            case _:
                return sorted((self._whole / _SNAPSHOT).iterdir())

    def flip(self, kind: str, seed: int) -> tuple[set[str], str]:
        """Flip a bit; -> (what became of it, where it was and what told so first)"""
        rng = random.Random(f"{kind} {seed}")
        path = rng.choice(self.files(kind))  # of a snapshot each file has its turn, or the large one had nearly all
        bit = rng.randrange(path.stat().st_size * 8)
        verdicts, told = self._verdict(path, bit, _READ[kind], self._expected[kind])
        if kind == "data.mdb":
            rewritten, also = self._verdict(path, bit, from_rewrite, self._rewritten)
            if rewritten == {"killed"}:
                verdicts |= rewritten
            elif rewritten - {"unseen", "refused"}:
                # the rewrite did not refuse, so that an error is what follows from a wrong base
                verdicts |= {"laundered"}
            told = told or also
        return verdicts, f"{path.relative_to(self._whole)} byte {bit // 8} bit {bit % 8}: {told}"

    def _verdict(
        self, path: Path, bit: int, read: Callable[[Path], list[Any]], expected: list[Any]
    ) -> tuple[set[str], str]:
        try:
            found = in_child(partial(self._read_flipped, path, bit, read))
        except Died as error:
            return {"killed"}, str(error)
        if isinstance(found, str):
            return {"refused"}, found
        verdict, told = compare(found, expected)
        return {verdict}, told

    def _read_flipped(self, path: Path, bit: int, read: Callable[[Path], list[Any]]) -> list[Any] | str:
        copy = self._copy()
        damaged = copy / path.relative_to(self._whole)
        data = bytearray(damaged.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(data)
        try:
            return read(copy)
        except (StoreError, lmdb.Error, OSError, *DECODE_ERRORS) as error:
            return f"{type(error).__name__}: {error}"


class Died(Exception):
    """A process was killed by a signal, or did not end."""


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, executed in a fork.  Raises Died."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.close(reading)
            signal.alarm(_DEADLINE_S)
            with open(os.devnull, "w") as silent:
                os.dup2(silent.fileno(), 2)
            try:
                found = work()
            except BaseException as error:
                found = f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(found))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) or not data:
        raise Died(f"signal {os.WTERMSIG(status)}")
    return pickle.loads(data)


@click.command()
@click.option("--flips", default=1000)
@click.option("--seed", default=0)
@click.option("--show", is_flag=True, help="Print each flip that is answered wrongly, laundered, or kills.")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS))
def main(flips: int, seed: int, show: bool, kinds: tuple[str, ...]) -> None:
    """Flip bits and count what becomes of them; exit status 1 when any was answered wrongly, or killed the process."""
    is_bad = False
    with tempfile.TemporaryDirectory(prefix="riverbed-rot-") as work:
        rot = Rot(Path(work))
        for kind in kinds or KINDS:
            counts: Counter[str] = Counter()
            for number in range(seed, seed + flips):
                verdicts, told = rot.flip(kind, number)
                counts.update(verdicts)
                if show and not verdicts.isdisjoint(BAD):
                    click.echo(f"  {kind} seed {number}: {', '.join(sorted(verdicts))}: {told[:300]}")
            click.echo(f"{kind:10} {flips} flips: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS))
            sys.stdout.flush()
            is_bad = is_bad or any(counts[verdict] for verdict in BAD)
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
