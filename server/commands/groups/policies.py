"""XGROUP POLICY, a command of ours: what a group does with entries over the delivery limit and idle consumers.

    XGROUP POLICY orders workers MAXDELIVERIES 5 DEADLETTER orders:dead CONSUMERTTL 3600000

An entry is over the delivery limit when it was delivered `MAXDELIVERIES` times and would be delivered once more.  It is
moved instead: appended to the dead-letter stream, with the fields of `ORIGIN_FIELDS` behind its own, and acknowledged,
in one unit of the log.  The consumer that asked is not given it.  Every command that counts a delivery may find such an
entry: a consumer's read of its history, XREADGROUP CLAIM, XAUTOCLAIM, XCLAIM.  With RETRYCOUNT the given number must
not be above the limit; JUSTID delivers nothing and moves nothing.

While the dead-letter stream cannot take entries, the policy is not applied and they are delivered: it is the stream of
the group itself since a RENAME, its IDs are at their end, or the server is short of space.

`store/databases/consumer_ttl.py` applies CONSUMERTTL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.groups.groups import named_group
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import OK
from riverbed.store.groups.pending_reads import MAX_OVER_LIMIT, MAX_OVER_LIMIT_BYTES, Found, PendingEntry
from riverbed.store.ids import MAX_ID, SEQ_BITS, StreamID
from riverbed.store.model import DeliveryPolicy

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.groups.group import Group

BAD_NUMBER: Final = "ERR {} must be a positive integer, or 0 or OFF for none"
NEEDS_DEADLETTER: Final = "ERR MAXDELIVERIES needs a DEADLETTER key, to which it moves entries"
NEEDS_MAXDELIVERIES: Final = "ERR DEADLETTER needs MAXDELIVERIES, which says when an entry goes there"
OWN_KEY: Final = "ERR the DEADLETTER key must be another one than the stream's own"
# IDs that a dead-letter stream must have left: more than one command can move.
_ROOM: Final = 1 << 16


@command(
    "XGROUP POLICY key group [MAXDELIVERIES count] [DEADLETTER key] [CONSUMERTTL milliseconds]",
    Flag.WRITE,
    since="8.8.0",
    summary="Sets or returns when a group gives up on an entry, and when it deletes an idle consumer; Riverbed's own.",
    reads_when_bare=True,
)
def xgroup_policy(request: Request) -> Reply:
    """XGROUP POLICY key group [options] -> OK; without options -> the policy.  Options not named keep their values."""
    argv = request.argv
    if len(argv) % 2:
        raise errors.subcommand_syntax(argv)
    given: dict[bytes, bytes] = {}
    for option, value in zip(argv[4::2], argv[5::2], strict=True):
        if option.upper() not in (b"MAXDELIVERIES", b"DEADLETTER", b"CONSUMERTTL"):
            raise errors.subcommand_syntax(argv)
        given[option.upper()] = value
    group = named_group(request)[1]
    old = group.policy
    if not given:
        return {
            b"max-deliveries": old.max_deliveries,
            b"dead-letter": old.dead_letter,
            b"consumer-ttl": old.consumer_ttl_ms,
        }
    max_deliveries = _take_number(given, b"MAXDELIVERIES", old.max_deliveries)
    consumer_ttl_ms = _take_number(given, b"CONSUMERTTL", old.consumer_ttl_ms)
    dead_letter = given.get(b"DEADLETTER", old.dead_letter)
    if not max_deliveries:
        if b"DEADLETTER" in given:
            raise CommandError(NEEDS_MAXDELIVERIES)
        dead_letter = None
    elif dead_letter is None:
        raise CommandError(NEEDS_DEADLETTER)
    if given.get(b"DEADLETTER") == argv[2] and not request.from_log:
        raise CommandError(OWN_KEY)
    policy = DeliveryPolicy(max_deliveries, dead_letter, consumer_ttl_ms)
    if policy != old:
        group.set_policy(policy)
        request.txn.changes += 1
    return OK


def _take_number(given: dict[bytes, bytes], option: bytes, old: int) -> int:
    """The value of an option; `old` when it is not given."""
    word = given.get(option)
    if word is None:
        return old
    if word.upper() == b"OFF":
        return 0
    error = BAD_NUMBER.format(option.decode())
    number = parse_int(word, error)
    if number < 0:
        raise CommandError(error)
    return number


class DeadLetters:
    """The entries over the delivery limit that one command finds in a group, and moves at its end."""

    def __init__(self, request: Request, group: Group) -> None:
        self._request = request
        self._group = group
        self._most = group.policy.max_deliveries
        self._ids: set[StreamID] = set()
        self._size = 0
        self.found: list[Found] = []

    @property
    def is_full(self) -> bool:
        """Whether the command has found as many as one may move: further entries stay pending until the next."""
        return len(self.found) >= MAX_OVER_LIMIT or self._size >= MAX_OVER_LIMIT_BYTES

    def exceeds(self, count: int) -> bool:
        return count > self._most

    def take(self, entry: PendingEntry, row: bytes, count: int) -> bool:
        """Note the entry and its row if its `count`th delivery would be over the limit; -> whether it would."""
        if count <= self._most:
            return False
        if not self.is_full and entry.entry_id not in self._ids:
            self._ids.add(entry.entry_id)
            self._size += len(row) + self._group.letter_bytes(entry.owner)
            self.found.append((entry, row))
        return True

    def move(self) -> None:
        """Move the entries that were found."""
        if not self.found:
            return
        request, key = self._request, self._group.policy.dead_letter
        assert key is not None
        target = request.db.stream(key, request.now_ms) or request.db.create(key)
        first_id = StreamID(max(request.now_ms << SEQ_BITS, target.last_id + 1))
        self._group.move_out(self.found, target, first_id)


def dead_letters(request: Request, group: Group) -> DeadLetters | None:
    """Where a command puts a group's entries over the delivery limit; None when no policy applies."""
    key = group.policy.dead_letter
    if key is None or request.from_log or key == group.stream.key or request.txn.is_short_of_space:
        return None
    target = request.db.stream(key, request.now_ms)
    if target is not None and target.last_id > MAX_ID - _ROOM:
        return None
    return DeadLetters(request, group)
