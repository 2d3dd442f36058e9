"""One flipped bit in the last batch is told from a torn write."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.errors import CorruptionError
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.log.bit_flips import MAX_BYTES, find_flipped_bit
from tests.support.store.stores import Store

COMMANDS = encode_command([b"XADD", b"s", b"1-1", b"f", b"v\r\n#CK:crc32c=00000000;len=9;off=9;t=9\r\n"])
BATCH = COMMANDS + encode_annotation(COMMANDS, 1234, 1_700_000_000_000)


def test_each_flipped_bit_is_found_where_it_is() -> None:
    for place in range(len(BATCH)):
        for bit in range(8):
            end = bytearray(BATCH)
            end[place] ^= 1 << bit
            assert find_flipped_bit(bytes(end)) == place, (place, bit)


def test_no_torn_write_is_taken_for_a_flipped_bit() -> None:
    for size in range(len(BATCH)):
        assert find_flipped_bit(BATCH[:size]) is None
        assert find_flipped_bit(BATCH[:size] + bytes(len(BATCH) - size)) is None  # a file that has grown first
        assert find_flipped_bit(bytes(size) + BATCH[size:]) is None or BATCH[:size] == bytes(size)


def test_two_flipped_bits_are_not_found() -> None:
    for place in range(0, len(BATCH) - 1, 7):
        end = bytearray(BATCH)
        end[place] ^= 1
        end[-1 - place // 2] ^= 8
        assert find_flipped_bit(bytes(end)) is None


def test_what_takes_too_long_is_not_tried() -> None:
    assert find_flipped_bit(bytes(MAX_BYTES + 1)) is None


@pytest.mark.parametrize("from_end", [10, 60, 100])
def test_a_start_refuses_a_last_batch_with_a_flipped_bit_and_changes_nothing(tmp_path: Path, from_end: int) -> None:
    store = Store(tmp_path / "store")
    for number in range(1, 4):
        store.run("XADD", "s", f"{number}-1", "f", "v" * 50)
        store.commit()
    store.kill()
    (path,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-from_end] ^= 2
    path.write_bytes(damaged)
    place = len(whole) - from_end
    with pytest.raises(CorruptionError, match=f"a bit is flipped in byte {place}, and the batch is whole but for that"):
        Store(tmp_path / "store")
    assert path.read_bytes() == bytes(damaged)
    path.write_bytes(whole)
    store = Store(tmp_path / "store")
    stream = store.txn.databases[0].stream(b"s", 0)
    assert stream is not None
    assert stream.length == 3
    store.kill()
