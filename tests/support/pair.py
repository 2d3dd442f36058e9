"""Two servers that must agree, and a look into the log of ours.

`Pair` is for hand-written cases; random scripts are compared by `differential.py`.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.raw import Frames, Node, RawClient, Word, parse

LOG_GLOB = "appendonlydir/*.incr.aof"


class Pair:
    """Sends every command to both servers and insists on equal bytes."""

    def __init__(self, ours: RawClient, theirs: RawClient) -> None:
        self.ours = ours
        self.theirs = theirs

    def ask(self, *words: Word) -> bytes:
        """The reply, which was the same from both."""
        ours, theirs = self.ours.ask(*words), self.theirs.ask(*words)
        assert ours == theirs, words
        return ours

    def say(self, line: str) -> bytes:
        """As `ask`, for words without blanks."""
        return self.ask(*line.split())

    def tree(self, *words: Word) -> Node:
        return parse(self.ask(*words))


def logged_commands(directory: Path) -> list[list[bytes]]:
    """Every command in the log of our server that runs on `directory`, oldest first, SELECT included."""
    commands = []
    for path in sorted(directory.glob(LOG_GLOB), key=lambda path: int(path.name.split(".")[-3])):
        frames = Frames()
        lines = path.read_bytes().splitlines(keepends=True)
        frames.feed(b"".join(line for line in lines if not line.startswith(b"#")))
        while (command := frames.next()) is not None:
            children = parse(command).children
            assert children is not None
            commands.append([word.text for word in children])
    return commands
