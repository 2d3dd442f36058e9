"""Refuses a command before it runs: for its words, for the state of its client, or because the gate refuses it."""

from __future__ import annotations

import functools
import ipaddress
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.access.logins import denial_of, text_of
from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import NOT_IN_MULTI, CommandError, wrong_arity
from riverbed.server.protocol.encode import error_line
from riverbed.server.protocol.replies import Settled

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.control.watches import Watches
    from riverbed.server.execution.gate import Gate

NOAUTH: Final = "NOAUTH Authentication required."
EXECABORT_BECAUSE: Final = b"EXECABORT Transaction discarded because of: %b"
CONFINED: Final = (
    b"ERR Can't execute '%b': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
)
REPLICA_AND_KEYS: Final = "ERR Replica can't interact with the keyspace"
DEBUG_NOT_ALLOWED: Final = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local '
    "connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


class Admission:
    """Lets the requests of clients pass, or makes the error that says why not."""

    def __init__(self, core: Core, gate: Gate, watches: Watches) -> None:
        self._core = core
        self._config = core.config
        self._gate = gate
        self._stats = core.stats
        self._watches = watches

    def admit(self, session: Session, argv: list[bytes]) -> Command | bytes:
        """The command that a request is to run, or the error line that refuses it."""
        command = None
        try:
            command = client_command(argv)
            self.check(session, command, argv)
            if session.is_confined and not command.flags & Flag.SUBSCRIBER:
                raise CommandError(CONFINED % command.full_name)
            if command.name == b"EXEC" and self._gate.refuses_writes:
                self._check_queued(session)
        except CommandError as error:
            return self._rejected(session, command, error)
        return command

    def check(self, session: Session, command: Command, argv: list[bytes], *, is_allowed: bool = False) -> None:
        """Raise CommandError when the command may not run.  `is_allowed`: that the user may send it is known."""
        flags = command.flags
        if not command.accepts(len(argv)):
            raise wrong_arity(command.full_name)
        if not session.authenticated and not flags & Flag.NO_AUTH:
            raise CommandError(NOAUTH)
        in_transaction = session.transaction.queued is not None
        if not is_allowed:
            denial = denial_of(self._core, session, command, argv, in_transaction=in_transaction)
            if denial is not None:
                raise CommandError(text_of(denial))
        if in_transaction and not command.allows_multi:
            raise CommandError(NOT_IN_MULTI)
        self._check_server(session, command)

    def _check_server(self, session: Session, command: Command) -> None:
        """Raise CommandError when the server does not run the command just now, whatever its words are."""
        if command.is_guarded and not self._allows_debug(session):
            raise CommandError(DEBUG_NOT_ALLOWED)
        if session.is_replica and command.flags & (Flag.WRITE | Flag.READONLY):
            raise CommandError(REPLICA_AND_KEYS)
        self._gate.check(command.flags)

    def _allows_debug(self, session: Session) -> bool:
        who = self._config.enable_debug_command
        return who == "yes" or (who == "local" and _is_local(session.peer.address))

    def check_queued(self, session: Session) -> None:
        """Raise CommandError when one of the queued commands is refused by now, so that none of them runs."""
        reason = None
        try:
            self._check_queued(session)
        except CommandError as error:
            reason = error.text
        if reason is not None:
            raise CommandError(EXECABORT_BECAUSE % reason)

    def _check_queued(self, session: Session) -> None:
        for argv in session.transaction.samples.values():  # EXEC looks at the words of each request again
            self._check_server(session, client_command(argv))

    def _rejected(self, session: Session, command: Command | None, error: CommandError) -> bytes:
        """The error line of a request that is refused before it runs."""
        if session.transaction.queued is not None or (command is not None and command.name == b"EXEC"):
            if command is not None and command.name == b"EXEC":
                # a refused EXEC ends the transaction all the same
                self._watches.clear(session)
                session.end_transaction()
                error = CommandError(EXECABORT_BECAUSE % error.text.removeprefix(b"ERR "))
            else:
                session.transaction.has_failed = True
        self._stats.commands_processed -= 1
        self._stats.count_error(error.text)
        session.last_command = b"" if command is None else command.full_name
        if command is not None:
            self._stats.counters(command.full_name).rejected += 1
        return Settled(error_line(error.text))


def _is_local(address: str) -> bool:
    """Whether a client is on this machine: its address is a loopback one, or the path of a Unix socket."""
    host = address.rpartition(":")[0]
    if host.startswith("/"):
        return True
    try:
        return is_loopback(host.strip("[]"))
    except ValueError:
        return False


@functools.lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether an IP address is one of this machine's own.  Raises ValueError when it is no address."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
