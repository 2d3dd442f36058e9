"""Flips a bit in a row that is in use, has commands write and read, and compares with a store that is whole.

    python -m tests.support.faults.row_rot [--flips N] [--seed S] [TABLE ...]

    unseen        every answer is right
    error         some answers are errors, and the rest are right: those of a whole store without the refused commands
    refused       the start fails with an error
    wrong         an answer is neither right nor an error; so a refused command has done something
    unscrubbed    a scrub takes the store for sound
    killed        the process died, or did not end

`bit_rot` flips any bit of a file, and so hardly ever one of a small table.  Here each table has its turn, and keys as
well as values; a command that is refused is undone as the server undoes it.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import click
import lmdb

from riverbed.server.errors import CommandError
from riverbed.store.errors import DamagedRowError, StoreError
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, require_sound
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.writing.commands import Mark
from tests.support.faults.bit_rot import Died, build, in_child
from tests.support.in_process import HandClock, Product, Words

VERDICTS = ("unseen", "error", "refused", "wrong", "unscrubbed", "killed")
BAD = VERDICTS[3:]
_MAP_BYTES = 1 << 28
_KEYS_SHARE = 0.6  # of the flips
_REFUSED = "-"
# How entries are kept in nodes depends on when the state was read from the log.
_LAYOUT = re.compile(r"b'radix-tree-(keys|nodes)', \d+, ")

WRITES = """
XTRIM one MAXLEN ~ 200|XTRIM two MAXLEN 150|XTRIM two MINID 2000|XDEL one 1230-0 1250-2 2220-0
XADD two MAXLEN 100 9000-0 f v|XACK one g 100-1 110-2 900-0|XCLAIM one h Carol 0 130-1 140-2 700-1
XAUTOCLAIM one g Dave 0 0 COUNT 30
XGROUP DELCONSUMER one g Alice|XGROUP DELCONSUMER one h Bob|XGROUP SETID one h 1000-0
XREADGROUP GROUP h New COUNT 7 STREAMS one >|RENAME two zwei|COPY one eins|DEL large|PERSIST kept|EXPIRE three 100000
XGROUP DESTROY one g|XTRIM zwei MAXLEN = 3|XADD once IDMP producer second * f v
XREADGROUP GROUP h Fred COUNT 20 CLAIM 1 STREAMS one >|XNACK one h FAIL IDS 2 150-0 160-1
XACKDEL one h KEEPREF IDS 2 170-2 180-0|XDELEX one DELREF IDS 3 190-1 200-2 2400-0|XADD one DELREF MAXLEN 100 9000-0 f v
XTRIM one ACKED MAXLEN 50|XSETID kept 7-7|MOVE kept 5|XGROUP POLICY one h MAXDELIVERIES 3 DEADLETTER dead
XAUTOCLAIM one h Eve 0 0 COUNT 50|XCFGSET zwei IDMP-DURATION 5|SWAPDB 0 7|SWAPDB 7 0
XADD once IDMP producer first * f v|XDEL three 2990-2|XADD new 1-1 f v|XGROUP CREATE three t 0
XREADGROUP GROUP t x COUNT 9 STREAMS three >|COPY of-three o3
"""
READS = """
XRANGE one - +|XRANGE eins - +|XRANGE zwei - +|XRANGE three - +|XRANGE once - +|XRANGE kept - +|XLEN one|XLEN zwei
XINFO STREAM one FULL COUNT 0|XINFO STREAM eins FULL COUNT 0|XINFO STREAM zwei FULL COUNT 0|XLEN three
XINFO STREAM three FULL COUNT 0
XINFO STREAM once FULL COUNT 0|XPENDING one h - + 500|XPENDING one h|XPENDING eins h - + 500|SCAN 0 COUNT 100|KEYS *
PEXPIRETIME kept|PEXPIRETIME three|TYPE large|SELECT 3|KEYS *|XRANGE of-three - +|SELECT 0
"""


def _commands(text: str) -> list[Words]:
    return [line.encode().split() for line in text.replace("\n", "|").split("|") if line]


_WRITES, _READS = _commands(WRITES), _commands(READS)


class _Undoing(Product):
    """Undoes a command that meets damage, as `server/execution/failures.py` does."""

    def ask(self, words: Words) -> str:
        engine, txn = self.engine, self.engine.txn
        real = type(engine).commit

        def commit(now_ms: int) -> bool:
            error = sys.exc_info()[1]
            if error is None or isinstance(error, CommandError):
                return real(engine, now_ms)
            if not (isinstance(error, DamagedRowError) and txn.is_unchanged_since(Mark(0, 0, 0))):
                engine.commit = partial(real, engine)
                engine.rollback(now_ms)
            return False

        engine.commit = commit
        try:
            return _LAYOUT.sub("", str(self.execute(words)))
        except CommandError as error:
            return f"{_REFUSED}{error.text!r}"
        except Exception as error:
            return f"{_REFUSED}{error!r}"
        finally:
            engine.commit = partial(real, engine)


class Answers(NamedTuple):
    writes: list[str]
    reads: list[str]


def _answers(directory: Path, left_out: frozenset[int]) -> Answers:
    product = _Undoing(directory, HandClock(1_700_000_010_000), node_max_entries=20)
    writes = ["" if number in left_out else product.ask(words) for number, words in enumerate(_WRITES)]
    return Answers(writes, list(map(product.ask, _READS)))


def _scrubbed(directory: Path) -> bool:
    """Whether a scrub finds something."""
    tables = Tables(directory, _MAP_BYTES, readonly=True)
    try:
        with tables.env.begin() as txn:
            require_sound(TableReader(tables, txn), SCRUBBED_TABLES, lambda rows: None)
    except (StoreError, *DECODE_ERRORS):
        return True
    finally:
        tables.close()
    return False


class RowRot:
    """A store with every kind of row, and what it answers when some of the commands are left out."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._whole = work / "whole"
        build(self._whole)
        self._data = (self._whole / STATE_DIRECTORY / DATA_NAME).read_bytes()
        self._rows = {table: rows for table in TABLES if (rows := self._rows_of(table))}
        self._known: dict[frozenset[int], Answers] = {}

    def _rows_of(self, table: str) -> list[tuple[bytes, bytes]]:
        """The rows that stand in one piece."""
        env = lmdb.open(str(self._whole / STATE_DIRECTORY), max_dbs=30, map_size=_MAP_BYTES, readonly=True, lock=False)
        with env.begin() as txn:
            rows = list(txn.cursor(env.open_db(table.encode(), txn=txn, create=False)))
        env.close()
        return [(key, row) for key, row in rows if key + row in self._data]

    def _right(self, left_out: frozenset[int]) -> Answers:
        if left_out not in self._known:
            self._known[left_out] = in_child(lambda: _answers(self._copy(self._data), left_out))
        return self._known[left_out]

    def _copy(self, data: bytes) -> Path:
        copy = self._work / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._whole, copy)
        (copy / STATE_DIRECTORY / DATA_NAME).write_bytes(data)
        return copy

    def flip(self, seed: int, tables: tuple[str, ...] = ()) -> tuple[set[str], str]:
        """Flip a bit; -> (what became of it, where it was and what told so first)"""
        chance = random.Random(f"row {seed}")
        table = chance.choice(tables or tuple(self._rows))
        key, row = chance.choice(self._rows[table])
        # nothing depends on the key of a note for the purge
        is_in_key = not row or (table != "trash" and chance.random() < _KEYS_SHARE)
        bit = chance.randrange(8 * len(key if is_in_key else row))
        flipped = bytearray(key + row)
        flipped[bit // 8 + (0 if is_in_key else len(key))] ^= 1 << bit % 8
        data = self._data.replace(key + row, bytes(flipped))
        verdicts, told = self._verdicts(data)
        return verdicts, f"{table} {'key' if is_in_key else 'row'} {key.hex()} bit {bit}: {told}"

    def _verdicts(self, data: bytes) -> tuple[set[str], str]:
        try:
            found = in_child(lambda: _answers(self._copy(data), frozenset()))
            is_scrubbed = in_child(lambda: _scrubbed(self._copy(data)))
        except Died as error:
            return {"killed"}, str(error)
        if isinstance(found, str):
            return {"refused"}, found
        verdict, told = self._compare(found)
        return ({verdict} if is_scrubbed else {verdict, "unscrubbed"}), told

    def _compare(self, found: Answers) -> tuple[str, str]:
        usual = self._right(frozenset())
        refused = frozenset(
            number
            for number, (mine, right) in enumerate(zip(found.writes, usual.writes, strict=True))
            if mine.startswith(_REFUSED) and not right.startswith(_REFUSED)
        )
        expected = self._right(refused)
        told = next((found.writes[number] for number in sorted(refused)), "")
        asked: list[Any] = [*_WRITES, *_READS]
        for words, mine, right in zip(asked, chain(*found), chain(*expected), strict=True):
            if mine != right and not mine.startswith(_REFUSED):
                return "wrong", f"{b' '.join(words)!r} gives {mine[:150]}, not {right[:150]}"
            told = told or (mine if mine != right else "")
        return ("error" if told else "unseen"), told


@click.command()
@click.option("--flips", default=500)
@click.option("--seed", default=0)
@click.argument("tables", nargs=-1, type=click.Choice(TABLES))
def main(flips: int, seed: int, tables: tuple[str, ...]) -> None:
    """Flip bits and count what becomes of them; exit status 1 when any was answered wrongly, or not found."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="riverbed-rot-") as work:
        rot = RowRot(Path(work))
        for number in range(seed, seed + flips):
            verdicts, told = rot.flip(number, tables)
            counts.update(verdicts)
            if not verdicts.isdisjoint(BAD):
                click.echo(f"  seed {number}: {', '.join(sorted(verdicts))}: {told}")
    click.echo(f"{flips} flips: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS))
    sys.exit(1 if any(counts[verdict] for verdict in BAD) else 0)


if __name__ == "__main__":
    main()
