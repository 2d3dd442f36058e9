"""A refusal, and the error replies that several families of commands give, spelled once; one family's stand with it.

Clients match on these texts, so they are Redis's to the letter.  Text that depends on the request is a function.
"""

from __future__ import annotations

from typing import Final


class CommandError(Exception):
    """A sound request that is refused.  `text` is the whole error line without `-` and CRLF, code word first."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.text = text if isinstance(text, bytes) else text.encode()


SYNTAX: Final = "ERR syntax error"
NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
NO_SUCH_KEY: Final = "ERR no such key"
INVALID_ID: Final = "ERR Invalid stream ID specified as stream command argument"
TIMEOUT_NOT_INTEGER: Final = "ERR timeout is not an integer or out of range"
TIMEOUT_NEGATIVE: Final = "ERR timeout is negative"
TIMEOUT_OUT_OF_RANGE: Final = "ERR timeout is out of range"


def wrong_arity(command: bytes) -> CommandError:
    """`command` is the full lower-case name, `xgroup|create` for a subcommand."""
    return CommandError(b"ERR wrong number of arguments for '%b' command" % command)


def unknown_subcommand(argv: list[bytes]) -> CommandError:
    """`argv` of a container whose second word names none of its subcommands; it is shown as typed, up to a NUL byte."""
    typed = argv[1][:128].partition(b"\0")[0]
    return CommandError(b"ERR unknown subcommand '%b'. Try %b HELP." % (typed, argv[0].upper()))


def subcommand_syntax(argv: list[bytes]) -> CommandError:
    """A subcommand that exists, with words it does not take."""
    return CommandError(
        b"ERR unknown subcommand or wrong number of arguments for '%b'. Try %b HELP." % (argv[1][:128], argv[0].upper())
    )
