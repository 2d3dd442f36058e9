"""The commands that are logged, in the open tick of the one write transaction, and the changes that have no line yet.

Mutators log what they do; the engine writes the lines into the log when the tick ends.  A command that fails is undone
if it has changed anything, so what changes before its line is logged is noted here too.
"""

from __future__ import annotations

from typing import Final

from riverbed.store.format.log_lines import encode_extension
from riverbed.store.format.meta import NO_DATABASE
from riverbed.store.format.resp import encode_command
from riverbed.store.model import Change
from riverbed.store.tables.writing.namespace import Namespace, Notify, ignore_change
from riverbed.store.tables.writing.participants import Observer, Unlogged

_NO_CHANGE: Final = -1


class Mark:
    """A place in a tick: what the commands before it have logged and counted, see `LoggedCommands`.

    Nothing changes one: a tick may share it.  Compiled, a class takes a fifth of the time of a named tuple to make one.
    """

    __slots__ = ("changes", "extension_bytes", "lines")

    def __init__(self, lines: int, extension_bytes: int, changes: int) -> None:
        self.lines = lines
        self.extension_bytes = extension_bytes
        self.changes = changes


class LoggedCommands:
    """The commands that mutators have logged since the last tick ended."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.extension_bytes = 0  # of the log: those that are in comment lines, which no offset counts
        self.changes = 0  # since the start, as Redis counts them: see `Engine.changes_since_checkpoint`
        self.expired_keys = 0
        self.expired_at: list[int] = []  # how much was logged when each of this tick was deleted
        self.unlogged: Unlogged | None = None
        self._changed_at = _NO_CHANGE  # how much was logged when something changed that the log had no line of
        self.has_lost = False  # something that the log has is neither in rows nor in memory
        self.log_db = NO_DATABASE
        self.observers: list[Observer] = []
        self.notify: Notify = ignore_change

    def forget_logged(self) -> None:
        """Begin the list of logged commands again, and know of no change that has no line: they are undone."""
        self.uncount_expired(0)
        self.drop_log()
        self.unlogged = None
        self.has_lost = False

    def count_expired(self) -> None:
        """Count a key that is about to be deleted because its deadline has passed."""
        self.expired_keys += 1
        self.expired_at.append(len(self.log))

    def uncount_expired(self, lines: int) -> None:
        """Count no key whose deletion is behind so many lines of the log: it is undone."""
        while self.expired_at and self.expired_at[-1] >= lines:
            self.expired_at.pop()
            self.expired_keys -= 1

    def log_select(self, number: int) -> None:
        """Log SELECT: the lines that follow are for database `number`."""
        self.log.append(encode_command([b"SELECT", b"%d" % number]))
        self.log_db = number

    def log_command(self, number: int, words: list[bytes]) -> None:
        """Log one canonical command of database `number`."""
        if self.log_db != number:
            self.log_select(number)
        self.log.append(encode_command(words))

    def log_extension(self, number: int, words: list[bytes]) -> None:
        """Log a command that Redis 7 does not know, in comment lines, which Redis skips."""
        if self.log_db != number:
            self.log_select(number)
        lines = encode_extension(words)
        self.extension_bytes += len(lines)
        self.log.append(lines)

    def log_is_written(self) -> None:
        """Begin the list of logged commands again: all of it is in the log."""
        for observer in self.observers:
            observer.logged(self.log)
        self.drop_log()

    def drop_log(self) -> None:
        """Begin the list of logged commands again: a log has them."""
        self.log.clear()
        self.expired_at.clear()
        self.extension_bytes = 0
        self._changed_at = _NO_CHANGE

    def change_begins(self) -> None:
        """Called before a change of rows or of memory that is logged later, when a damaged row may be met before that.

        A command that then fails is undone, although it has logged nothing.
        """
        self._changed_at = len(self.log)

    def lose(self) -> None:
        """Called when damage, or too little memory, has lost something that the log has: see `Engine.restore_lost`."""
        self.change_begins()
        self.has_lost = True

    def mark(self) -> Mark:
        """The place in the tick where the next command begins."""
        return Mark(len(self.log), self.extension_bytes, self.changes)

    def is_unchanged_since(self, mark: Mark) -> bool:
        """Whether nothing has changed behind `mark`.  May say no without a reason."""
        return len(self.log) == mark.lines and self.unlogged is None and self._changed_at != mark.lines

    def log_later(self, changed: Unlogged) -> None:
        """Have `changed` log its rest when the command ends, or before another object changes."""
        if self.unlogged is not changed:
            self.end_command()
            self.unlogged = changed

    def end_command(self) -> None:
        """Log the changes that the lines of the command, or of its slice, do not contain.  `Engine.commit` calls it."""
        changed = self.unlogged
        if changed is not None:
            self.unlogged = None
            changed.log_rest()

    def notify_interest(self, change: Change, namespace: Namespace, key: bytes) -> None:
        if key in namespace.interest:
            self.notify(change, namespace, key)

    def lose_observers(self) -> None:
        """Tell all observers that they have not seen everything, and forget them."""
        for observer in self.observers:
            observer.lost()
        self.observers.clear()
