"""Execute logs that a Redis wrote on our store; commands that are not about streams are left out, and counted.

A Redis also holds keys of other types, and its log has commands for them.  These are skipped, except for their effect
on streams: SET on a stream's key deletes the stream, and so does RENAME of a string to the key.  So are those for
databases that are not here: what comes from there is not known, and what goes there is gone.  All other commands go
through the handlers that clients use, and the mutators log them again in our canonical form.

Errors of commands are ignored, as in a Redis that loads its log; they are counted too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from riverbed.server.commands.replay import Replayer
from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.errors import ReplayError
from riverbed.store.format.log_lines import encode_command
from riverbed.store.log.files.batch import Batch
from riverbed.store.wire import Run

SHOWN_KEYS: Final = 5  # of each command
_MAX_NAMES: Final = 200  # different commands, and different reasons, that are counted separately
_OTHERS: Final = "others"
_SHOWN_NAME_BYTES: Final = 40

# Commands in a log that do not change the state: they are for replicas, or keep a connection alive.
_NOT_STATE: Final = frozenset((b"PING", b"REPLCONF", b"PUBLISH", b"SPUBLISH"))

_MULTI: Final = encode_command([b"MULTI"])
_EXEC: Final = encode_command([b"EXEC"])
_SELECT: Final = b"*2\r\n$6\r\nSELECT\r\n"


@dataclass(slots=True)
class Skipped:
    """Commands that were not executed: the number of each name, and the first few of their keys."""

    commands: Counter[str] = field(default_factory=Counter)
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    databases: Counter[int] = field(default_factory=Counter)  # commands for databases that do not exist
    refused: Counter[str] = field(default_factory=Counter)  # by the reason
    places: dict[str, str] = field(default_factory=dict)  # where each reason came up first

    @property
    def total(self) -> int:
        return self.commands.total() + self.databases.total() + self.refused.total()

    def add_command(self, words: list[bytes]) -> None:
        name = _name(words[0])
        if name not in self.commands and len(self.commands) >= _MAX_NAMES:
            name = _OTHERS
        self.commands[name] += 1
        keys = self.keys.setdefault(name, [])
        if len(words) > 1 and len(keys) < SHOWN_KEYS and words[1] not in keys:
            keys.append(words[1])

    def add_refusal(self, reason: str, place: str) -> None:
        if reason not in self.refused and len(self.refused) >= _MAX_NAMES:
            reason = _OTHERS
        self.refused[reason] += 1
        self.places.setdefault(reason, place)


def _name(word: bytes) -> str:
    text = word[:_SHOWN_NAME_BYTES].decode("ascii", "backslashreplace")
    return "".join(letter if letter.isprintable() else "?" for letter in text).upper()


# -- commands of other types that delete a stream ----------------------------------------------------------------------


def _first(words: list[bytes]) -> list[bytes]:
    return words[1:2]


def _number(words: list[bytes]) -> int:
    """The number that the only one of `words` is, below 10^9; -1 for anything else."""
    text = words[0] if len(words) == 1 else b""
    return int(text) if text.isdigit() and len(text) < 10 else -1


def _every_other(words: list[bytes]) -> list[bytes]:
    return words[1::2]


def _every_other_of_a_count(words: list[bytes]) -> list[bytes]:
    return words[2::2][: max(_number(words[1:2]), 0)]


def _behind_store(words: list[bytes]) -> list[bytes]:
    return [words[at + 1] for at, word in enumerate(words[:-1]) if at > 1 and word.upper() in (b"STORE", b"STOREDIST")]


# Commands that overwrite a key of any type, and the words that name the key.  Other commands fail on a stream's key,
# and a failed command is not logged.
_OVERWRITE: Final[dict[bytes, Callable[[list[bytes]], list[bytes]]]] = {
    **dict.fromkeys(
        (
            b"SET",
            b"SETEX",
            b"PSETEX",
            b"RESTORE",
            b"SUNIONSTORE",
            b"SINTERSTORE",
            b"SDIFFSTORE",
            b"ZUNIONSTORE",
            b"ZINTERSTORE",
            b"ZDIFFSTORE",
            b"ZRANGESTORE",
            b"GEOSEARCHSTORE",
        ),
        _first,
    ),
    b"MSET": _every_other,
    b"MSETEX": _every_other_of_a_count,
    b"BITOP": lambda words: words[2:3],
    b"SORT": _behind_store,
    b"GEORADIUS": _behind_store,
    b"GEORADIUSBYMEMBER": _behind_store,
}


class ForeignLog:
    """Executes batches of a log of Redis on `txn`, which collects the commands for our log."""

    def __init__(self, txn: WriteTxn, replayer: Replayer) -> None:
        self.skipped = Skipped()
        self.commands = 0
        self._txn = txn
        self._replayer = replayer
        self._db: Database | None = txn.databases[0]
        self._no_such_db = 0
        self._multi_mark: int | None = None

    def run(self, batch: Batch) -> None:
        """Execute all of `batch`.  Raises nothing that a command's words could cause."""
        for request in batch.requests:
            if isinstance(request, Run):
                self._run_xadds(request, batch)
            else:
                self._run_command(request, batch)

    def _run_xadds(self, run: Run, batch: Batch) -> None:
        """Append the entries of a run: together, as far as each is what `append_run` calls simple."""
        if self._db is None or self._multi_mark is not None:  # `_end_transaction` counts commands
            for words in run.requests():
                self._run_command(words, batch)
            return
        while True:
            done, _ = self._db.append_run(run, 0)
            self.commands += done
            if done < len(run):
                self._run_command(run.request(done), batch)
                done += 1
            if done == len(run):
                return
            run = run.rest(done)

    def _run_command(self, words: list[bytes], batch: Batch) -> None:
        self.commands += 1
        name = words[0].upper()
        if name == b"SELECT":
            self._select(words)
        elif name == b"MULTI":
            self._multi_mark = len(self._txn.log)
        elif name == b"EXEC":
            self._end_transaction()
        elif name in _NOT_STATE or self._runs_across(name, words, batch):
            pass
        elif self._db is None:
            self.skipped.databases[self._no_such_db] += 1
        else:
            self._run(self._db, name, words, batch)

    def _runs_across(self, name: bytes, words: list[bytes], batch: Batch) -> bool:
        """Do to the databases that are here what a command does in which one that is not here has a part; -> if so."""
        db, here = self._db, self._txn.databases[0]
        if name == b"FLUSHALL" and db is None:
            self._execute(here, words, batch)
        elif name == b"SWAPDB" and len(words) == 3:
            numbers = [_number(words[1:2]), _number(words[2:])]
            found = [each for each in map(self._database, numbers) if each is not None]
            if min(numbers) < 0 or (len(found) == 2 and db is not None):
                return False
            if len(found) == 2:
                self._execute(here, words, batch)
            else:
                self.skipped.databases[max(numbers)] += 1
                for each in found:
                    each.flush()
        elif name == b"MOVE" and db is not None and self._is_elsewhere(_number(words[2:])):
            self.skipped.databases[_number(words[2:])] += 1
            self._delete(db, words[1])
        elif name == b"COPY" and len(words) > 2 and db is None and (target := self._target(db, words)) is not None:
            self.skipped.databases[self._no_such_db] += 1
            self._delete(target, words[2])
        else:
            return False
        return True

    def _is_elsewhere(self, number: int) -> bool:
        return number >= 0 and self._database(number) is None

    def _select(self, words: list[bytes]) -> None:
        self._no_such_db = _number(words[1:])
        self._db = self._database(self._no_such_db)

    def _end_transaction(self) -> None:
        """Put MULTI and EXEC around the commands of a transaction, for a Redis that reads our log.

        For Riverbed a batch is a transaction.
        """
        logged, mark = self._txn.log, self._multi_mark
        self._multi_mark = None
        if mark is None:
            return
        if logged[mark : mark + 1] and logged[mark].startswith(_SELECT):
            mark += 1  # a file of the log must begin with SELECT
        if sum(not lines.startswith((b"#", _SELECT)) for lines in logged[mark:]) > 1:
            logged.insert(mark, _MULTI)
            logged.append(_EXEC)

    def _run(self, db: Database, name: bytes, words: list[bytes], batch: Batch) -> None:
        if not self._replayer.knows(words):
            self.skipped.add_command(words)
            overwritten = _OVERWRITE.get(name)
            for key in overwritten(words) if overwritten is not None else ():
                self._delete(db, key)
            return
        if name in (b"RENAME", b"RENAMENX", b"COPY") and len(words) > 2 and db.stream(words[1], 0) is None:
            # Redis has logged the command, so the key held a value of another type.
            self.skipped.add_command(words)
            target = self._target(db, words) if name == b"COPY" else db
            if target is not None:
                self._delete(target, words[2])
            return
        self._execute(db, words, batch)

    def _execute(self, db: Database, words: list[bytes], batch: Batch) -> None:
        try:
            self._replayer.execute(self._txn, db, words)
        except ReplayError as error:
            self.skipped.add_refusal(str(error), f"{batch.file}, bytes {batch.start} to {batch.end.position}")

    def _delete(self, db: Database, key: bytes) -> None:
        stream = db.stream(key, 0)
        if stream is not None:
            db.delete(stream)

    def _target(self, db: Database | None, words: list[bytes]) -> Database | None:
        """The database that COPY writes to; None when it is not here."""
        for option, value in pairwise(words[3:]):
            if option.upper() == b"DB":
                return self._database(_number([value]))
        return db

    def _database(self, number: int) -> Database | None:
        databases = self._txn.databases
        return databases[number] if 0 <= number < len(databases) else None
