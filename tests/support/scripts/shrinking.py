"""A mismatch, explained: shrunk by leaving out commands for as long as two servers still disagree, and printed.

What is printed is a script to replay; it reads back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.support.raw import Word, encode_word, quote
from tests.support.scripts.differential import Mismatch, Pair
from tests.support.scripts.generators import Step


@dataclass
class Shrinker:
    """Leave out steps for as long as `fails` still finds a mismatch (delta debugging), for at most `seconds`."""

    fails: Callable[[Sequence[Step]], Mismatch | None]
    seconds: float = 40.0

    def shrink(self, script: Sequence[Step], mismatch: Mismatch) -> tuple[list[Step], Mismatch]:
        deadline = time.monotonic() + self.seconds
        steps = list(script[: mismatch.number + 1])
        chunk = max(1, len(steps) // 2)
        while time.monotonic() < deadline:
            shorter, found = self._without_one_chunk(steps, chunk, deadline)
            if found is not None:
                steps, mismatch = shorter, found
                chunk = min(chunk, max(1, len(steps) // 2))
            elif chunk > 1:
                chunk //= 2
            else:
                break
        return steps, mismatch

    def _without_one_chunk(self, steps: list[Step], chunk: int, deadline: float) -> tuple[list[Step], Mismatch | None]:
        for end in range(len(steps), 0, -chunk):
            if time.monotonic() > deadline:
                break
            shorter = steps[: max(0, end - chunk)] + steps[end:]
            found = self.fails(shorter)
            if found is not None:
                return shorter[: found.number + 1], found
        return steps, None


def as_text(script: Sequence[Step]) -> str:
    """The script as lines `connection> words`, quoted as redis-cli quotes; `from_text` reads them back."""
    return "\n".join(f"{step.connection}> {' '.join(map(quote, step.words))}" for step in script)


def from_text(text: str) -> list[Step]:
    """Read lines of `as_text`."""
    steps = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        connection, _, rest = line.partition("> ")
        steps.append(Step(int(connection), tuple(_split(rest))))
    return steps


_WORD = re.compile(r'"((?:\\.|[^"\\])*)"|(\S+)')
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\(.)")
_NAMED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "r": "\r"}


def _split(line: str) -> Iterator[bytes]:
    def unescape(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _NAMED.get(match[2], match[2])

    for match in _WORD.finditer(line):
        word = _ESCAPE.sub(unescape, match[1]) if match[1] is not None else match[2]
        yield word.encode("latin-1")


def script_of(*commands: Sequence[Word]) -> list[Step]:
    """A script by hand, on connection 0."""
    return [Step(0, tuple(map(encode_word, words))) for words in commands]


def explain(pair: Pair, script: Sequence[Step], mismatch: Mismatch, node_entries: int, what: str) -> str:
    shrinker = Shrinker(lambda steps: pair.run(steps, node_entries=node_entries))
    steps, mismatch = shrinker.shrink(script, mismatch)
    return (
        f"{what}: the servers disagree {mismatch}\nscript (stream-node-max-entries {node_entries}):\n{as_text(steps)}"
    )


def run_and_explain(pair: Pair, script: Sequence[Step], node_entries: int, what: str) -> None:
    mismatch = pair.run(script, node_entries=node_entries)
    if mismatch is not None:
        pytest.fail(explain(pair, script, mismatch, node_entries, what), pytrace=False)
