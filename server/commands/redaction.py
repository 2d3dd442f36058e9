"""Secrets among a command's words: only the command itself may see them.

MONITOR and SLOWLOG show `Command.shown(words)`.  A command with secrets declares one of the functions here, or one of
its own beside its handler.  Each function hides every word that it does not understand: a mistyped command may have its
password in another place, where Redis shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

REDACTED: Final = b"(redacted)"


def all_but_the_name(words: Sequence[bytes]) -> list[bytes]:
    """AUTH: every argument."""
    return [*words[:1], *hidden(words[1:])]


def hidden(words: Sequence[bytes]) -> list[bytes]:
    """The same number of words, all unreadable."""
    return [REDACTED] * len(words)
