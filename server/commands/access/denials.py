"""Refusals of the last time, newest first: what ACL LOG shows.

Equal refusals within a minute are one entry with a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from riverbed.server.commands.access.interface import Reason

_SAME_FOR_MS: Final = 60_000
# Entries that are compared with a new one, the newest of them.
_COMPARED: Final = 10
_MAX_BYTES: Final = 1024  # of a key, a channel or a name: clients choose them
_MAX_LINE_BYTES: Final = 4096  # of the line about a client, which has its name

NAMES: Final = {Reason.COMMAND: b"command", Reason.KEY: b"key", Reason.CHANNEL: b"channel", Reason.AUTH: b"auth"}


@dataclass(slots=True)
class Entry:
    """One kind of refusal."""

    number: int
    reason: Reason
    in_transaction: bool
    what: bytes
    user: bytes
    client: bytes  # the line of CLIENT LIST
    begun_ms: int
    last_ms: int
    count: int = 1


class Denials:
    """The refusals of one server."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.totals = dict.fromkeys(Reason, 0)
        self._next_number = 0

    def note(
        self, reason: Reason, what: bytes, user: bytes, client: bytes, now_ms: int, *, in_transaction: bool, most: int
    ) -> None:
        """Note a refusal, and keep at most `most` entries."""
        self.totals[reason] += 1
        what, user, client = what[:_MAX_BYTES], user[:_MAX_BYTES], client[:_MAX_LINE_BYTES]
        for at, entry in enumerate(islice(self.entries, _COMPARED)):
            is_same = (entry.reason, entry.in_transaction, entry.what, entry.user) == (
                reason,
                in_transaction,
                what,
                user,
            )
            if is_same and now_ms - entry.last_ms <= _SAME_FOR_MS:
                entry.count += 1
                entry.client, entry.last_ms = client, now_ms
                self.entries.insert(0, self.entries.pop(at))
                break
        else:
            entry = Entry(self._next_number, reason, in_transaction, what, user, client, now_ms, now_ms)
            self._next_number += 1
            self.entries.insert(0, entry)
        del self.entries[most:]
