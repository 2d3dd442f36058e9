"""The exception for a refused request, and the error replies that several families of commands give.

Clients match on these texts, so they are Redis's to the letter.  A text that depends on the request is a function.  The
errors of a single family stand in its module.
"""

from __future__ import annotations

from typing import Final

from riverbed.store.errors import Refusal


class CommandError(Exception):
    """A well-formed request is refused.  `text` is the whole error line without `-` and CRLF, code word first."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.text = text if isinstance(text, bytes) else text.encode()


SYNTAX: Final = "ERR syntax error"
NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
NO_SUCH_KEY: Final = "ERR no such key"
NOT_IN_MULTI: Final = "ERR Command not allowed inside a transaction"
INVALID_ID: Final = "ERR Invalid stream ID specified as stream command argument"
TIMEOUT_NOT_INTEGER: Final = "ERR timeout is not an integer or out of range"
TIMEOUT_NEGATIVE: Final = "ERR timeout is negative"
TIMEOUT_OUT_OF_RANGE: Final = "ERR timeout is out of range"


def wrong_arity(command: bytes) -> CommandError:
    """Wrong number of words.  `command` is the full lower-case name, `xgroup|create` for a subcommand."""
    return CommandError(b"ERR wrong number of arguments for '%b' command" % command)


def unknown_subcommand(argv: list[bytes]) -> CommandError:
    """The second word names no subcommand of the container; it is shown as typed, up to a NUL byte."""
    typed = argv[1][:128].partition(b"\0")[0]
    return CommandError(b"ERR unknown subcommand '%b'. Try %b HELP." % (typed, argv[0].upper()))


def subcommand_syntax(argv: list[bytes]) -> CommandError:
    """The subcommand exists, but does not take these words."""
    return CommandError(
        b"ERR unknown subcommand or wrong number of arguments for '%b'. Try %b HELP." % (argv[1][:128], argv[0].upper())
    )


# No other checkpoint has a chance before that, and its error would read as if the disk had failed just now.
_REMEDIES: Final = {
    Refusal.LOG_FAILED: "restart the server",
    Refusal.TABLES_FAILED: "restart the server, or send RIVERBED REPAIR",
}


def require_sound_disk(refusal: Refusal | None, what: str) -> None:
    """Raise CommandError where the disk has failed: `what` is a checkpoint, or begins with one."""
    if refusal in _REMEDIES:
        raise CommandError(f"ERR no {what}: {refusal.value}; {_REMEDIES[refusal]}")
