"""Mixes: XADDs, and XACKs of one group, that are neighbours in a chunk."""

from __future__ import annotations

from typing import NamedTuple

from riverbed.store.wire.reference.runs import Entry, Run, checked
from riverbed.store.wire.reference.words import take_word, words_at


class Ack(NamedTuple):
    """One XACK of one entry: where it stands in its chunk, how many XADDs come before it, and its ID."""

    start: int
    end: int
    before: int
    packed: bytes
    text: bytes


class Mix:
    """XADDs, and XACKs of one group, that are neighbours in a chunk: what a worker sends that passes entries on.

    An XACK changes nothing that an XADD looks at, and the other way round.  So the XADDs may be executed together, and
    the XACKs behind them, if the replies come in the order of the requests.  Among requests it passes for one, like a
    run.
    """

    __slots__ = ("_acks", "adds", "chunk", "group", "key")

    def __init__(self, chunk: bytes, adds: list[Entry], key: bytes, group: bytes, acks: list[Ack]) -> None:
        self.chunk = chunk
        self._acks = acks
        self.adds = Run(chunk, adds) if adds else None
        self.key = key  # of the XACKs
        self.group = group

    def __len__(self) -> int:
        return self._add_count + len(self._acks)

    def __getitem__(self, index: int) -> type[Mix]:
        if index:
            raise IndexError("a mix has no words")
        return type(self)

    @property
    def _add_count(self) -> int:
        return 0 if self.adds is None else len(self.adds)

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        places = self._places()
        return places[-1][1] - places[0][0]

    def _places(self) -> list[tuple[int, int]]:
        entries = [] if self.adds is None else self.adds.entries
        return sorted([(entry.start, entry.end) for entry in entries] + [(ack.start, ack.end) for ack in self._acks])

    def requests(self, first: int = 0) -> list[list[bytes]]:
        """The requests from number `first` on, as lists of words, in order.  ValueError when there is no such one."""
        return [self.request(at) for at in range(checked(first, len(self) - 1), len(self))]

    def request(self, at: int) -> list[bytes]:
        """Request number `at` as a list of words.  ValueError when there is no such request."""
        start, end = self._places()[checked(at, len(self) - 1)]
        return words_at(self.chunk, start, end)[0]

    def acks_before(self, added: int) -> int:
        """How many XACKs there are in front of XADD number `added`, or of the end."""
        checked(added, self._add_count)
        return sum(ack.before <= added for ack in self._acks)

    def acks(self, count: int) -> tuple[list[bytes], bytes]:
        """-> (packed IDs, the same as bulk strings) of the first XACKs.  ValueError when there are not so many."""
        acks = self._acks[: checked(count, len(self._acks))]
        return [ack.packed for ack in acks], b"".join([b"$%d\r\n%b\r\n" % (len(ack.text), ack.text) for ack in acks])

    def replies(self, ids: bytes, acked: bytes) -> bytes:
        """The replies in the order of the requests.

        `ids` are the bulk strings that answer the first XADDs, `acked` has a byte for each of the first XACKs: 1 if the
        entry was pending.  ValueError when these are no such answers, or too many.
        """
        checked(len(acked), len(self._acks))
        answers: list[bytes] = []
        at = added = 0
        for ack, was_pending in [*zip(self._acks, acked, strict=False), (None, 0)]:
            until = self._add_count if ack is None else ack.before
            while added < until and at < len(ids):
                found = take_word(ids, at, len(ids))
                if found is None:
                    raise ValueError("not the bulk strings of IDs")
                answers.append(ids[at : found[1]])
                at, added = found[1], added + 1
            if ack is not None:
                answers.append(b":1\r\n" if was_pending else b":0\r\n")
        if at < len(ids):
            raise ValueError("more answers than XADDs")
        return b"".join(answers)
