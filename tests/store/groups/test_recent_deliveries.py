"""What was given out a moment ago is known again in the words of its acknowledgement, and nothing else is."""

from __future__ import annotations

import pytest

from riverbed.store.format.resp import encode_words, id_bulk, id_bulks
from riverbed.store.groups import recent_deliveries as deliveries_module
from riverbed.store.groups.recent_deliveries import RecentDeliveries
from riverbed.store.ids import StreamID, id_text, make_id, pack_id


def ids(first: int, count: int) -> list[StreamID]:
    return [make_id(1_700_000_000_000 + number, number % 7) for number in range(first, first + count)]


def note(recent_deliveries: RecentDeliveries, entry_ids: list[StreamID]) -> list[bytes]:
    """-> the words of their acknowledgement."""
    recent_deliveries.note([pack_id(entry_id) for entry_id in entry_ids], b"".join(map(id_bulk, entry_ids)))
    return [id_text(entry_id) for entry_id in entry_ids]


def test_the_same_words_are_known_again_once() -> None:
    recent_deliveries = RecentDeliveries()
    entry_ids = ids(0, 100)
    words = note(recent_deliveries, entry_ids)
    assert recent_deliveries.take(words) == ([pack_id(entry_id) for entry_id in entry_ids], encode_words(words))
    assert recent_deliveries.take(words) is None
    assert len(recent_deliveries) == 0


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
    recent_deliveries = RecentDeliveries()
    words = note(recent_deliveries, ids(0, 100))
    assert callable(change)
    assert recent_deliveries.take(change(words)) is None
    assert recent_deliveries.take(words) is not None


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries_module, "_CAPACITY", 250)
    recent_deliveries = RecentDeliveries()
    first, second, third = (note(recent_deliveries, ids(start, 100)) for start in (0, 100, 200))
    assert len(recent_deliveries) == 200
    assert recent_deliveries.take(first) is None
    assert recent_deliveries.take(third) is not None
    assert recent_deliveries.take(second) is not None


def test_a_batch_that_begins_as_another_did_takes_its_place() -> None:
    recent_deliveries = RecentDeliveries()
    longer = note(recent_deliveries, ids(0, 100))
    shorter = note(recent_deliveries, ids(0, 50))
    assert len(recent_deliveries) == 50
    assert recent_deliveries.take(longer) is None
    assert recent_deliveries.take(shorter) is not None


def test_what_is_short_or_uneven_is_not_kept() -> None:
    recent_deliveries = RecentDeliveries()
    note(recent_deliveries, ids(0, 3))
    note(recent_deliveries, [make_id(5, seq) for seq in range(8, 20)])
    assert len(recent_deliveries) == 0


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
