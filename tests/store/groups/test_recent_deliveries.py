"""What was given out a moment ago is known again in the words of its acknowledgement, and nothing else is."""

from __future__ import annotations

import pytest

from riverbed.store.format.resp import encode_words, id_bulk, id_bulks
from riverbed.store.groups import recent_deliveries as handedout
from riverbed.store.groups.recent_deliveries import HandedOut
from riverbed.store.ids import StreamID, id_text, make_id, pack_id


def ids(first: int, count: int) -> list[StreamID]:
    return [make_id(1_700_000_000_000 + number, number % 7) for number in range(first, first + count)]


def note(handed_out: HandedOut, entry_ids: list[StreamID]) -> list[bytes]:
    """-> the words of their acknowledgement."""
    handed_out.note([pack_id(entry_id) for entry_id in entry_ids], b"".join(map(id_bulk, entry_ids)))
    return [id_text(entry_id) for entry_id in entry_ids]


def test_the_same_words_are_known_again_once() -> None:
    handed_out = HandedOut()
    entry_ids = ids(0, 100)
    words = note(handed_out, entry_ids)
    assert handed_out.recall(words) == ([pack_id(entry_id) for entry_id in entry_ids], encode_words(words))
    assert handed_out.recall(words) is None
    assert len(handed_out) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda words: words[:-1],
        lambda words: [*words, words[-1]],
        lambda words: words[1:],
        lambda words: [words[0], *reversed(words[1:])],
        lambda words: [*words[:-1], b"0" + words[-1]],
        lambda words: [*words[:-2], b"\r\n".join(words[-2:])],
        lambda words: [*words[:-2], b"\r\n".join(words[-2:]), b""],
    ],
)
def test_other_words_are_not_known(change: object) -> None:
    handed_out = HandedOut()
    words = note(handed_out, ids(0, 100))
    assert callable(change)
    assert handed_out.recall(change(words)) is None
    assert handed_out.recall(words) is not None


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handedout, "_CAPACITY", 250)
    handed_out = HandedOut()
    first, second, third = (note(handed_out, ids(start, 100)) for start in (0, 100, 200))
    assert len(handed_out) == 200
    assert handed_out.recall(first) is None
    assert handed_out.recall(third) is not None
    assert handed_out.recall(second) is not None


def test_a_batch_that_begins_as_another_did_takes_its_place() -> None:
    handed_out = HandedOut()
    longer = note(handed_out, ids(0, 100))
    shorter = note(handed_out, ids(0, 50))
    assert len(handed_out) == 50
    assert handed_out.recall(longer) is None
    assert handed_out.recall(shorter) is not None


def test_what_is_short_or_uneven_is_not_kept() -> None:
    handed_out = HandedOut()
    note(handed_out, ids(0, 3))
    note(handed_out, [make_id(5, seq) for seq in range(8, 20)])
    assert len(handed_out) == 0


def test_bulk_strings_of_ids_are_cut_out_of_rows_of_any_length() -> None:
    for entry_ids in (
        ids(0, 30),
        [make_id(5, seq) for seq in range(95, 120)],
        [make_id(5, seq) for seq in (100, 7, 2000)],
        [make_id(99, 10), make_id(100, 1), make_id(1000, 0)],
    ):
        bulks = [id_bulk(entry_id) for entry_id in entry_ids]
        rows = [(b"", bulk + body) for bulk in bulks for body in (b"*2\r\n$1\r\nf\r\n$3\r\n*\r\n\r\n",)]
        assert id_bulks(rows) == b"".join(bulks)
