"""Bytes that a stranger may send, and what the native module makes of them beside its reference.

As a program it does so with a build of the module that is given by its path, for one that was built with sanitizers:

    python -m tests.support.wire_fuzz PATH ROUNDS
"""

from __future__ import annotations

import importlib.util
import random
import sys
from array import array
from importlib.machinery import ExtensionFileLoader
from itertools import accumulate
from types import ModuleType
from typing import Any, Final

from crc32c import crc32c

from riverbed.store.wire import reference
from riverbed.store.wire.interface import APPENDED, LOGGED, NO_RUNS
from tests.support.leaf_pages import SearchedFile, compare_leaves, compare_searches, leaf
from tests.support.stream_rows import compare_streams, random_row

KINDS: Final = (NO_RUNS, APPENDED, LOGGED)
MAX_HALF: Final = (1 << 64) - 1
PREFIX: Final = b"\0\1\2\3\4\5\6\xff"
KEYS: Final = (b"k", b"k", b"key", b"", b"t")
KEY: Final = PREFIX + bytes(range(16))
ROW: Final = b"$3\r\n0-0\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
LOG_HEAD: Final = b"*5\r\n$4\r\nXADD\r\n$1\r\nk\r\n"
ODD: Final = (
    b"*0\r\n",
    b"*-1\r\n",
    b"*01\r\n$1\r\na\r\n",
    b"*+1\r\n$1\r\na\r\n",
    b"*999999999\r\n",
    b"*9999999999\r\n",
    b"*99999999999999999999999\r\n",
    b"*1\r\n$999999999\r\na\r\n",
    b"*1\r\n$18446744073709551617\r\na\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\rx$1\r\na\r\n",
    b"*1\r\n*1\r\n$1\r\na\r\n",
    b"PING\r\n",
    b"\r\n",
    b"*",
    b"*1",
    b"*1\r",
    b"*1\r\n$",
    b"*1\r\n$3\r\nab",
    b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
)
IDS: Final = (
    b"*", b"0-0", b"0-1", b"1-1", b"1-2", b"7-0", b"1700000000000-0", b"18446744073709551615-18446744073709551615",
    b"18446744073709551616-0", b"5-99999999999999999999", b"01-1", b"1-01", b"1", b"1-", b"-1", b"1-*", b"$", b"",
    b"1-1-1",
)  # fmt: skip

THRESHOLDS: Final = (
    *(b"0", b"1", b"3", b"1000", b"999999999", b"1000000000", b"01", b"-1", b"", b"x", b"99999999999999999999"),
    *(b"0-0", b"1-1", b"2-5", b"1700000000000-0", b"~", b"="),
)


def wire(words: list[bytes], end: bytes = b"\r\n") -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b%b" % (len(word), word, end) for word in words)


def random_request(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.choice(ODD)
    end = b"xx" if rng.random() < 0.05 else b"\r\n"
    if rng.random() < 0.1:
        return wire([rng.choice([b"PING", b"XACK", b"MULTI", b""])] * rng.randint(1, 9), end)
    if rng.random() < 0.4:
        return rng.choice([random_xack, random_xclaim, random_xrange])(rng, end)
    name = rng.choice([b"XADD"] * 6 + [b"xadd"] * 2 + [b"Xadd"])
    ids = [b"%d-%d" % (rng.randint(0, 3), rng.randint(0, 99))] * 3 + [b"%d" % rng.randint(0, 9), rng.choice(IDS)]
    wanted = rng.choice([b"*"] * 4 + ids)
    words = [rng.randbytes(rng.choice([0, 1, 2, 9, 10, 120])) for _ in range(rng.choice([2, 2, 2, 4, 4, 3, 1, 10]))]
    options: list[bytes] = []
    if rng.random() < 0.4:
        options = [
            rng.choice([b"MAXLEN", b"MAXLEN", b"maxlen", b"MINID", b"minId", b"MINI\x64", b"MAXLE\x6d", b"LIMIT"]),
            *rng.choice([[b"~"], [b"~"], [b"~"], [b"="], []]),
            rng.choice(THRESHOLDS),
        ][: rng.choice([3, 3, 3, 3, 2])]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        options.insert(rng.choice([0, len(options)]), rng.choice([b"NOMKSTREAM", b"nomkstream", b"NOMKSTREAMS"]))
    if rng.random() < 0.1:  # as the log has them
        options, wanted = [b"MAXLEN", b"=", rng.choice(THRESHOLDS)], ids[0]
    return wire([name, rng.choice(KEYS), *options, wanted, *words], end)


def random_xack(rng: random.Random, end: bytes) -> bytes:
    ids = [b"%d-%d" % (rng.randint(0, 3), rng.randint(0, 99)), rng.choice(IDS)]
    words = [
        rng.choice([b"XACK"] * 6 + [b"xack"] * 2 + [b"Xack"]),
        rng.choice(KEYS),
        rng.choice([b"g", b"g", b"", b"h"]),
    ]
    return wire([*words, *rng.choices(ids, k=rng.choice([1] * 12 + [0, 2]))], end)


def random_xclaim(rng: random.Random, end: bytes) -> bytes:
    ids = [b"%d-%d" % (rng.randint(0, 3), rng.randint(0, 99))] * 9 + [rng.choice(IDS)]
    words = [
        rng.choice([b"XCLAIM"] * 8 + [b"xclaim", b"XClaim"]),
        rng.choice([b"s", b"s", b"s", b"", b"key"]),
        rng.choice([b"g"] * 9 + [b""]),
        rng.choice([b"c"] * 9 + [b"d"]),
        rng.choice([b"0"] * 9 + [b"10", b"-1", b"x"]),
        *rng.choices(ids, k=rng.choice([1] * 12 + [0, 2])),
        rng.choice([b"JUSTID"] * 9 + [b"justid", b"JustId", b"JUSTIDS", b"JUSTI\x24", b"FORCE"]),
    ]
    return wire(words, end)


def random_xrange(rng: random.Random, end: bytes) -> bytes:
    ids = [b"%d-%d" % (rng.randint(0, 3), rng.randint(0, 99)), b"7", rng.choice(IDS)]
    words = [
        rng.choice([b"XRANGE"] * 8 + [b"xrange", b"XRange"]),
        rng.choice(KEYS),
        rng.choice([b"-", b"-", *ids, b"+", b"(1-1"]),
        rng.choice([b"+", b"+", *ids, b"-", b"(1-1"]),
        rng.choice([b"COUNT"] * 9 + [b"count", b"Count", b"COUNTS", b"COUN\x34"]),
        *rng.choice([[b"1"]] * 9 + [[b"2"], [b"01"], [b""], [b"1", b"1"], []]),
    ]
    return wire(words, end)


def random_chunk(rng: random.Random) -> bytes:
    """Requests that follow each other, mostly sound, with neighbours that are alike; some bytes may be changed."""
    parts = []
    for _ in range(rng.randint(1, 6)):
        request = random_request(rng)
        parts += [request] * rng.choice([1, 1, 1, 2, 2, 3, 3, 40, 300])
    chunk = bytearray(b"".join(parts))
    for _ in range(rng.choice([0, 0, 0, 1, 2, 5])):
        at = rng.randrange(len(chunk) + 1)
        chunk[at : at + rng.randint(0, 2)] = rng.choice([b"", b"*", b"$", b"\r\n", b"9", b"0", b"-", rng.randbytes(3)])
    return bytes(chunk[: rng.randrange(len(chunk) + 1)] if rng.random() < 0.3 else chunk)


def shown(requests: list[Any] | None) -> list[Any] | None:
    """What the two modules' runs have in common, in a form that can be compared."""
    if requests is None:
        return None
    return [shown_request(one) for one in requests]


def shown_request(one: Any) -> Any:
    if isinstance(one, list):
        return one
    if are_ranges(one):
        return shown_ranges(one)
    return shown_mix(one) if is_mix(one) else shown_claims(one) if are_claims(one) else shown_run(one)


def is_mix(one: Any) -> bool:
    return type(one).__name__ == reference.Mix.__name__


def are_claims(one: Any) -> bool:
    return type(one).__name__ == reference.Claims.__name__


def are_ranges(one: Any) -> bool:
    return type(one).__name__ == reference.Ranges.__name__


def shown_ranges(ranges: Any) -> Any:
    singles = [ranges.request(at) for at in range(len(ranges))]
    return len(ranges), ranges.size, ranges.bounds(), ranges.requests(), singles


def shown_claims(claims: Any) -> Any:
    singles = [claims.request(at) for at in range(len(claims))]
    return claims.names, len(claims), claims.size, claims.ids(), claims.requests(), singles


def shown_mix(mix: Any) -> Any:
    adds = None if mix.adds is None else shown_run(mix.adds)
    singles = [mix.request(at) for at in range(len(mix))]
    return adds, mix.key, mix.group, len(mix), mix.size, mix.requests(), singles


def shown_run(run: Any) -> Any:
    entries = [(run.entry(at), run.request(at)) for at in range(len(run))]
    return run.key, len(run), run.word_count, run.is_plain, run.size, run.requests(), entries


def shown_tail(tail: Any) -> Any:
    return tail.size, tail.trimmed, tail.last_id, tail.nodes(), tail.stream_row()


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (ValueError, OverflowError) as error:
        return type(error)


def compare(native: ModuleType, chunk: bytes, rng: random.Random) -> None:
    """Raise AssertionError where the two differ on `chunk`."""
    for kind in KINDS:
        start, end = sorted((rng.randrange(len(chunk) + 1), rng.randrange(len(chunk) + 1)))
        for first, last in ((0, len(chunk)), (start, end)):
            found = shown(native.parse(kind, chunk, first, last))
            assert found == shown(reference.parse(kind, chunk, first, last)), (chunk, first, last, kind)
        of_native: list[Any] = []
        of_reference: list[Any] = []
        taken = native.parse_front(kind, chunk, of_native)
        assert taken == reference.parse_front(kind, chunk, of_reference), (chunk, kind)
        assert shown(of_native) == shown(of_reference), (chunk, kind)
        for one, expected in zip(of_native, of_reference, strict=True):
            compare_request(native, one, expected, rng)


def compare_request(native: ModuleType, one: Any, expected: Any, rng: random.Random) -> None:
    """The same for what is made of a request."""
    if isinstance(one, list):
        return
    if are_claims(one):
        compare_claims(one, expected, rng)
        return
    if are_ranges(one):
        compare_ranges(one, expected, rng)
        return
    if is_mix(one):
        compare_mixes(one, expected, rng)
        one, expected = one.adds, expected.adds
    if one is not None:
        compare_runs(native, one, expected, rng)


def compare_mixes(mix: Any, expected: Any, rng: random.Random) -> None:
    """The same for what is made of a mix."""
    at = rng.randint(-1, len(mix))
    assert outcome(mix.request, at) == outcome(expected.request, at)
    assert outcome(mix.requests, at) == outcome(expected.requests, at)
    most = 0 if mix.adds is None else len(mix.adds)
    added = rng.choice([most, rng.randint(0, most)])
    acked = mix.acks_before(added)
    assert acked == expected.acks_before(added)
    assert mix.acks(acked) == expected.acks(acked)
    bulks = [b"$%d\r\n%b\r\n" % (len(text), text) for text in rng.choices([b"1-1", b"1700000000000-10", b""], k=added)]
    ids, flags = b"".join(bulks), bytes(rng.choices([0, 1], k=acked))
    if rng.random() < 0.1:
        ids = ids[:-1] if rng.random() < 0.5 else ids + b"$0\r\n\r\n"
        flags += rng.choice([b"", bytes(len(mix))])
    assert outcome(mix.replies, ids, flags) == outcome(expected.replies, ids, flags), (mix.requests(), ids, flags)
    for number in (-1, most + 1, len(mix) - most + 1):
        assert outcome(mix.acks_before, number) == outcome(expected.acks_before, number)
        assert outcome(mix.acks, number) == outcome(expected.acks, number)


def compare_claims(claims: Any, expected: Any, rng: random.Random) -> None:
    """The same for what is made of claims."""
    at = rng.randrange(len(claims))
    rest, expected_rest = claims.rest(at), expected.rest(at)
    assert shown_claims(rest) == shown_claims(expected_rest)
    for number in (-1, len(claims)):
        assert outcome(claims.rest, number) == outcome(expected.rest, number)
        assert outcome(claims.request, number) == outcome(expected.request, number)
    claimed = bytes(rng.choices([0, 1], k=rng.choice([0, 1, len(rest), len(rest) + 1])))
    assert outcome(rest.replies, claimed) == outcome(expected_rest.replies, claimed), (rest.requests(), claimed)


def compare_ranges(ranges: Any, expected: Any, rng: random.Random) -> None:
    """The same for what is made of ranges."""
    at = rng.randrange(len(ranges))
    assert shown_ranges(ranges.rest(at)) == shown_ranges(expected.rest(at))
    for number in (-1, len(ranges)):
        assert outcome(ranges.rest, number) == outcome(expected.rest, number)
        assert outcome(ranges.request, number) == outcome(expected.request, number)


def compare_runs(native: ModuleType, run: Any, expected: Any, rng: random.Random) -> None:
    """The same for what is made of a run."""
    at = rng.randint(0, len(run))
    if at < len(run):
        run, expected = run.rest(at), expected.rest(at)
        assert shown([run]) == shown([expected])
        at = rng.randint(0, len(run))
    compare_appending(native, run, expected, at, rng)
    most, room = rng.choice([0, 1, 3, 1000]), rng.choice([0, 1, 20, 100, 4096, 1 << 62])
    key = PREFIX + random_id(rng)
    rows: list[Any] = []
    expected_rows: list[Any] = []
    assert native.expand_one(run, key, LOG_HEAD) == reference.expand_one(expected, key, LOG_HEAD)
    last = PREFIX + rng.choice([bytes(16), bytes(15) + b"\1", b"\xff" * 16])
    found = native.load_xadds(run, at, most, room, last, rows)
    assert found == reference.load_xadds(expected, at, most, room, last, expected_rows)
    assert rows == expected_rows


def compare_joins(native: ModuleType, rng: random.Random) -> None:
    """The same for what several clients have sent, and for the replies to it."""
    chunks = [random_request(rng) if rng.random() < 0.2 else wire([b"XADD", b"k", b"*", b"f", b"v"]) for _ in range(9)]
    chunks = chunks[: rng.randrange(10)] * rng.choice([1, 1, 1, 40])
    if chunks and rng.random() < 0.5:
        at = rng.randrange(len(chunks))
        chunk = chunks[at]
        chunks[at] = rng.choice([b"", chunk * 2, chunk[: rng.randrange(len(chunk))], chunk + b"*", b"\r\n" + chunk])
    run, expected = native.join(chunks), reference.join(chunks)
    assert (run is None) == (expected is None), chunks
    if run is not None:
        assert shown_run(run) == shown_run(expected), chunks
        assert b"".join(chunks).startswith(b"".join(wire(words) for words in run.requests())), chunks
        compare_runs(native, run, expected, rng)
    bulks = b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in rng.choices(IDS, k=rng.randrange(9)))
    bulks = rng.choice([bulks, bulks, bulks[: rng.randrange(len(bulks) + 1)], bulks + rng.choice(ODD)])
    assert outcome(native.split_bulks, bulks) == outcome(reference.split_bulks, bulks), bulks


def compare_ids(native: ModuleType, rng: random.Random) -> None:
    """The same for the texts of IDs."""
    text = rng.choice(IDS)
    if rng.random() < 0.5:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + bytes([rng.choice(b"0123456789- a\0\xff")]) + text[at + rng.randrange(2) :]
    assert native.packed_id(text) == reference.packed_id(text), text
    ids = sorted({random_id(rng) for _ in range(rng.randrange(12))})
    packed, wanted = b"".join(ids) + b"x" * rng.choice([0] * 9 + [1, 15]), rng.choice([*ids, random_id(rng)])
    assert native.find_id(packed, wanted) == reference.find_id(packed, wanted), (packed, wanted)
    assert (reference.find_id(packed, wanted) < 0) == (wanted not in ids)


def compare_rows(native: ModuleType, rng: random.Random) -> None:
    """The same for rows of entries, mostly those that we would write."""
    rows = []
    for _ in range(rng.randrange(6)):
        ms, seq = rng.choice([0, 1, 1_700_000_000_000, MAX_HALF]), rng.choice([*range(20), MAX_HALF])
        text = b"%d-%d" % (ms, seq)
        words = [
            rng.choice([b"", b"f", b"v" * 9, b"v" * 10, b"v" * 1000, b"*2\r\n"])
            for _ in range(rng.choice([2, 2, 4, 24, 3]))
        ]
        row = b"$%d\r\n%b\r\n%b" % (len(text), text, wire(words))
        if rng.random() < 0.2:
            at = rng.randrange(len(row))
            row = row[:at] + bytes([rng.choice(b"0129-*$\r\n\0")]) * rng.randrange(3) + row[at + rng.randrange(2) :]
        if rng.random() < 0.7:
            row = reference.seal(PREFIX, row)
            if rng.random() < 0.2:
                at = rng.randrange(len(row))
                row = row[:at] + bytes([row[at] ^ 1 << rng.randrange(8)]) + row[at + 1 :]
        key = PREFIX + ms.to_bytes(8, "big") + seq.to_bytes(8, "big")
        rows.append((key[: rng.choice([24] * 30 + [23, 8, 7])] + b"x" * (rng.random() < 0.02), row))
    if rng.random() < 0.2:
        rows.append((bytes(24), b""))
    most, head = rng.choice([0, 1, 3, 1000, -1]), rng.choice([b"", LOG_HEAD, b"h" * 5000])
    found = outcome(native.measure_entries, iter(rows), PREFIX, most)
    expected = outcome(reference.measure_entries, iter(rows), PREFIX, most)
    assert found == expected, (rows, most, found, expected)
    if rng.random() < 0.7:
        rows.sort()
    values, room = [row for _, row in rows], rng.choice([-1, 0, 1, 100, 10_000])
    last_key = PREFIX + rng.choice([bytes(16), bytes(7) + b"\1" + bytes(8), bytes(15), b"\xff" * 16])
    found = outcome(native.log_entries, iter(values), last_key, head, room)
    expected = outcome(reference.log_entries, iter(values), last_key, head, room)
    assert found == expected, (values, room, found, expected)
    compare_seals(native, rows)


def compare_places(native: ModuleType, rng: random.Random) -> None:
    """The same for finding values in rows of one buffer, and for gathering them."""
    heads = [
        rng.choice([b"", b"$", b"*2\r\n$1\r\nf\r\n$", b"\r\n$40\r\n" + b"n" * 40]) for _ in range(rng.randrange(4))
    ]
    tail = rng.choice([b"", b"\r\n"])
    rows = []
    for _ in range(rng.randrange(5)):
        values = [rng.choice([b"", b"v" * 7, b"8" * 8, b"\xc3\xa9" * 5, b"x" * 300]) for _ in heads]
        lengths = [
            rng.choice([b"%d", b"%d", b"%04d", b"%012d", b"-%d"]) % (len(value) + (rng.random() < 0.1))
            for value in values
        ]
        words = zip(heads, lengths, values, strict=True)
        rows.append(b"".join(b"%b%b\r\n%b" % each for each in words) + tail + b"?" * (rng.random() < 0.1))
        if rng.random() < 0.2 and rows[-1]:
            at = rng.randrange(len(rows[-1]))
            rows[-1] = rows[-1][:at] + bytes([rng.choice(b"0129$\r\n\0")]) * rng.randrange(2) + rows[-1][at + 1 :]
    buffer = b"".join(rows)
    ends = list(accumulate(map(len, rows)))
    starts = [end - len(row) for row, end in zip(rows, ends, strict=True)]
    if rows and rng.random() < 0.2:
        rng.choice([starts, ends])[rng.randrange(len(rows))] = rng.choice(
            [-1, 0, len(buffer), len(buffer) + 1, -(1 << 63), (1 << 63) - 1]
        )
    spans = array("q", starts), array("q", ends[: rng.choice([len(ends)] * 9 + [1])])

    def found_by(module: Any) -> Any:
        places, found = (
            array("q", bytes(16 * len(heads) * len(rows))),
            bytearray(len(rows) + (rng_again.random() < 0.05)),
        )
        count = outcome(module.find_values, buffer, *spans, heads, tail, places, found)
        return count, bytes(found), [places[at] for at in range(len(places)) if found[at % len(rows)] == 1]

    def gathered_by(module: Any) -> Any:
        size = (
            max(0, sum(end - start for start, end in zip(*spans, strict=False)))
            if max(map(abs, [*starts, *ends]), default=0) < 1 << 40
            else 9
        )
        offsets, pieces = bytearray(4 * (len(rows) + 1)), bytearray(size + (rng_again.random() < 0.05))
        is_ascii = outcome(module.gather, buffer, *spans, offsets, pieces)
        return (is_ascii, bytes(offsets), bytes(pieces)) if isinstance(is_ascii, bool) else is_ascii

    seed = rng.random()
    for look in (found_by, gathered_by):
        rng_again = random.Random(seed)
        of_native = look(native)
        rng_again = random.Random(seed)
        assert of_native == look(reference), (buffer, spans, heads, tail)


def compare_seals(native: ModuleType, rows: list[tuple[bytes, bytes]]) -> None:
    """The same for taking the seals off; lists are changed in their place, and so are rows that only a list has."""

    def alone(rows: list[bytes]) -> list[bytes]:
        return [bytes(bytearray(row)) for row in rows]

    def as_changed(module: Any, name: str, *before: bytes) -> tuple[Any, Any]:
        values = alone([row for _, row in rows])
        changed = [(key, row) for (key, _), row in zip(rows, values, strict=True)] if name == "unseal_pairs" else values
        del values[: len(values) if name == "unseal_pairs" else 0]
        return outcome(getattr(module, name), *before, changed), changed

    for name, before in (("unseal", (PREFIX,)), ("unseal_pairs", ())):
        assert as_changed(native, name, *before) == as_changed(reference, name, *before), (name, rows)
    for key, row in rows:
        assert outcome(native.unseal_one, key, row) == outcome(reference.unseal_one, key, row), row
        assert native.seal(PREFIX, row) == reference.seal(PREFIX, row), row


def compare_pending(native: ModuleType, rng: random.Random) -> None:
    """The same for pending entries, mostly of rows that are runs."""

    def number(*choices: int, size: int = 8) -> bytes:
        return rng.choice(choices).to_bytes(size, "big")

    def packed_id() -> bytes:
        return number(0, 1, 1_700_000_000_000, MAX_HALF) + number(*range(20), MAX_HALF)

    rows = [
        number(0, 1, 2, 3, 1 << 31, size=4)
        + number(0, 5, 1_700_000_000_000, 1 << 48 | 5, 0xFFFF << 48 | 1_700_000_000_000, MAX_HALF)
        + number(0, 1, MAX_HALF)
        + b"".join(sorted(packed_id() for _ in range(rng.randrange(6))))
        + b"x" * (rng.random() < 0.02)
        for _ in range(rng.randrange(5))
    ]
    owners = {0: b"$0\r\n\r\n", 1: b"$1\r\na\r\n", 1 << 31: b"$99\r\n%b\r\n" % (b"b" * 99)}
    first, last = sorted((packed_id(), packed_id()))
    first = first[: rng.choice([16] * 50 + [15])]
    now_ms, until_ms = rng.choice([0, 7, 1_700_000_000_001]), rng.choice([-1, 0, 6, (1 << 63) - 1])
    most = rng.choice([0, 1, 3, 1000, -1])
    prefix = number(3, 7)[: rng.choice([8] * 50 + [7])]
    if rng.random() < 0.7:
        covered = rng.choice([prefix, prefix, b"", b"another"])
        rows = [row + crc32c(row, crc32c(covered)).to_bytes(4, "big") for row in rows]
    arguments = (prefix, rows, first, last, owners, now_ms, until_ms, most)
    found, expected = outcome(native.show_pending, *arguments), outcome(reference.show_pending, *arguments)
    assert found == expected, (arguments, found, expected)
    for row in rows:
        key = prefix + row[-16:]
        assert outcome(native.open_run, key, row) == outcome(reference.open_run, key, row), (key, row)


def compare_changes(native: ModuleType, rng: random.Random) -> None:
    """The same for runs whose entries change: mostly neighbours in order, mostly with what makes them join or part."""
    prefix = rng.choice([3, 7]).to_bytes(8, "big")
    ids = sorted({rng.randrange(60).to_bytes(16, "big") for _ in range(rng.randrange(40))})
    deliveries = [(1, 5, 1), (1, 5, 1), (2, 5, 1), (1, 6, 1), (1, 5, 2), (1, 1 << 48 | 5, 1), (1, MAX_HALF, 1)]
    rows: list[tuple[bytes, bytes] | None] = []
    at = 0
    while at < len(ids):
        held = ids[at : at + rng.choice([1, 1, 2, 5, 12])]
        owner, moment, count = rng.choice(deliveries)
        if len(held) == 1 and rng.random() < 0.3:
            owner, moment = 0, at
        row = owner.to_bytes(4, "big") + moment.to_bytes(8, "big") + count.to_bytes(8, "big") + b"".join(held)
        if rng.random() < 0.9:
            row += crc32c(row, crc32c(rng.choice([prefix] * 30 + [b"", b"another"]))).to_bytes(4, "big")
        rows.append((prefix + held[-1], row))
        at += len(held)
    order = [packed for packed in ids if rng.random() < rng.choice([0.1, 0.5, 1.0])]
    states = [None, (3, 9, 1), (3, 9, 1), *deliveries]
    changed = {packed: rng.choice(states) for packed in order}
    for number, packed in enumerate(order):
        if rng.random() < 0.1:
            changed[packed] = (0, 1000 + number, 1)
    if rng.random() < 0.05:
        del rng.choice([rows, order])[-1:]
    if rng.random() < 0.3:
        rows.insert(rng.randrange(len(rows) + 1), None)
    if rng.random() < 0.03:
        rng.shuffle(rows)
    for item in filter(None, rows):
        key, row = item
        wanted = rng.choice([prefix] * 9 + [bytes(8)]) + rng.choice([*ids, bytes(16)])
        asked = (rng.choice([key, key, None, wanted]), row[: rng.choice([len(row)] * 9 + [19, 20, 36])], wanted)
        answer, right = outcome(native.find_delivery, *asked), outcome(reference.find_delivery, *asked)
        assert answer == right, (asked, answer, right)
    arguments = (prefix, rows, order, changed, rng.choice([0, 1, 3, 100, 100]))
    found, expected = outcome(native.change_runs, *arguments), outcome(reference.change_runs, *arguments)
    assert found == expected, (arguments, found, expected)


def random_id(rng: random.Random) -> bytes:
    ms = rng.choice([0, 0, 1, 2, 1_700_000_000_000, MAX_HALF])
    seq = rng.choice([0, 0, 8, 9, 98, 999, MAX_HALF - 3, MAX_HALF - 1, MAX_HALF])
    return ms.to_bytes(8, "big") + seq.to_bytes(8, "big")


def random_tail(rng: random.Random) -> tuple[Any, ...]:
    """The arguments of `open_tail`, or of `open_tail_by_row`."""
    most, room = rng.choice([0, 1, 3, 1000, 1000]), rng.choice([0, 1, 20, 100, 4096, 1 << 62])
    length, live = rng.choice([0, 1, 5, 999, 1000]), rng.choice([0, 1, 5, 100, 1 << 61])
    node = rng.choice([1, 2, 5, 1 << 62]), rng.choice([0, 20, 60, 400, 1 << 62]), rng.choice([0, 0, 1, 2, 9])
    if rng.random() < 0.3:
        return PREFIX, random_row(rng, PREFIX), *node
    return PREFIX + random_id(rng), random_id(rng), random_id(rng), length, live, most, room, *node


def open_tails(module: ModuleType, opened: dict[bytes, tuple[Any, ...]]) -> dict[bytes, Any]:
    """The tails that are opened with such arguments, those of rows by these."""
    tails = {
        key: (module.open_tail_by_row if len(arguments) == 5 else module.open_tail)(*arguments)
        for key, arguments in opened.items()
    }
    return {key: tail for key, tail in tails.items() if tail is not None}


def compare_appending(native: ModuleType, run: Any, expected: Any, at: int, rng: random.Random) -> None:
    """The same for runs that are appended to tails, twice to the same ones."""
    opened = {key: random_tail(rng) for key in KEYS if rng.random() < 0.8}
    tails, expected_tails = open_tails(native, opened), open_tails(reference, opened)
    watched = {rng.choice(KEYS): 1} if rng.random() < 0.1 else {}
    for _ in range(2):
        now_ms = rng.choice([0, 1, 2, 1_700_000_000_000])
        found = native.append(run, at, tails, watched, now_ms)
        wanted = reference.append(expected, at, expected_tails, watched, now_ms)
        assert found == wanted, (found, wanted)
        if rng.random() < 0.5:
            found = native.load(run, at, tails, watched)
            assert found == reference.load(expected, at, expected_tails, watched), found
        for key, tail in tails.items():
            assert shown_tail(tail) == shown_tail(expected_tails[key]), (key, opened[key])
            if rng.random() < 0.5:
                assert list(tail.take_rows()) == list(expected_tails[key].take_rows()), (key, opened[key])
    asked = at, rng.choice([0, 20, 4096, 1 << 62]), tails, watched
    assert native.unknown_keys(run, *asked) == reference.unknown_keys(expected, *asked), asked
    in_order = native.keys_in_order(tails)
    assert sorted(in_order) == sorted(tails)
    prefixes = [expected_tails[key].prefix for key in in_order]
    assert prefixes == sorted(prefixes)
    if rng.random() < 0.5:
        rows, streams = native.take_tails(list(tails.values()))
        wanted_rows, wanted_streams = reference.take_tails([expected_tails[key] for key in tails])
        assert streams == wanted_streams
        assert sorted(rows) == list(wanted_rows)  # several may be of one stream here
    for key, tail in tails.items():
        assert list(tail.take_rows()) == list(expected_tails[key].take_rows()), (key, opened[key])
        assert shown_tail(tail) == shown_tail(expected_tails[key])


def run_out_of_memory(native: ModuleType) -> None:
    """Have each allocation of each function fail in turn: MemoryError, or what is returned without any memory."""
    from _testcapi import remove_mem_hooks, set_nomemory

    client = b"".join(wire([b"XADD", b"key", b"*", b"f", b"v"]) for _ in range(3)) + wire([b"PING", b"a"])
    log = b"".join(wire([b"XADD", b"k", b"1-%d" % seq, b"f", b"v"]) for seq in range(1, 4))
    [run, _] = native.parse(APPENDED, client)
    plenty = (PREFIX + bytes(16), bytes(16), bytes(16), 0, 0, 1, 1 << 40, 9, 1 << 40, 3)
    [logged] = native.parse(LOGGED, log)
    ascending = [ROW.replace(b"0-0", b"0-%d" % seq) for seq in (1, 2, 3)]
    many, wanted = b"".join([number.to_bytes(16, "big") for number in range(99)]), (90).to_bytes(16, "big")
    page = leaf([(b"a", b"1"), (b"bc", b"22")])
    file = SearchedFile()
    values = (1, None, 1000, 1000, 0, *(number << 70 | 1 for number in range(1, 8)), 0, 0, 1000, 0, 1000, None)
    row = native.pack_stream(b"k", values)
    calls = [
        lambda: native.parse(APPENDED, client),
        lambda: native.parse_front(NO_RUNS, client, []),
        lambda: native.append(run, 0, {b"key": tail}, {b"x": 1}, 1),
        lambda: native.open_tail(*plenty),
        lambda: list(tail.nodes()),
        lambda: native.open_tail_by_row(b"k", row, 9, 9, 9),
        lambda: native.open_tail_by_row(b"k", row, 9, 9, 9).stream_row(),
        lambda: native.open_stream(b"k", row),
        lambda: native.pack_stream(b"k", values),
        lambda: native.load(logged, 0, {b"k": tail}, {b"x": 1}),
        lambda: list(filled.take_rows()),
        lambda: list(native.take_tails([filled, native.open_tail_by_row(b"k", row, 9, 9, 9)])[0]),
        lambda: native.unknown_keys(run, 0, 99, {b"x": 1}, {}),
        lambda: native.keys_in_order({b"key": tail}),
        lambda: native.expand_one(run, KEY, LOG_HEAD),
        lambda: native.load_xadds(logged, 0, 9, 1 << 40, PREFIX + bytes(16), []),
        lambda: native.show_pending(PREFIX, [bytes(3) + b"\1" + bytes(48)], bytes(16), b"\xff" * 16, {1: b""}, 0, 0, 9),
        lambda: native.change_runs(
            PREFIX, [(PREFIX + many[16:32], bytes(20) + many[:32])], [bytes(16)], {bytes(16): None}, 9
        ),
        lambda: native.open_run(PREFIX + many[16:32], bytes(20) + many[:32]),
        lambda: native.find_delivery(PREFIX + many[16:32], bytes(20) + many[:32], PREFIX + many[:16]),
        lambda: native.packed_id(b"1-1"),
        lambda: native.find_id(many, wanted),
        lambda: native.measure_entries(iter([(PREFIX + bytes(16), ROW)] * 3), PREFIX, 9),
        lambda: native.log_entries(iter(ascending), PREFIX + bytes(16), LOG_HEAD, 1000),
        lambda: native.measure_leaf(page, None),
        lambda: native.find_deliveries(
            file.pages, file.commit_no, b"runs", file.PREFIX, [file.packed(number) for number in range(99)]
        ),
        lambda: native.find_keys(file.pages, file.commit_no, b"tree", [file.key(number) for number in range(99)]),
        run.requests,
        lambda: run.request(0),
        lambda: run.entry(0),
        lambda: run.rest(1),
    ]
    for call in calls:
        was_refused = False
        for number in range(40):
            refused = False
            tail, filled = native.open_tail(*plenty), native.open_tail(*plenty)
            native.load(logged, 0, {b"k": filled}, {})
            set_nomemory(number, number + 1)
            try:
                call()
            except MemoryError:
                refused = True
            finally:
                remove_mem_hooks()
            was_refused |= refused
        assert was_refused


def load_module(path: str) -> ModuleType:
    """The native module that was built at `path`."""
    loader = ExtensionFileLoader("native", path)
    spec = importlib.util.spec_from_loader("native", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def main(path: str, rounds: int) -> None:
    native = load_module(path)
    rng = random.Random(13)
    file = SearchedFile()
    for _ in range(rounds):
        compare(native, random_chunk(rng), rng)
        compare_joins(native, rng)
        compare_pending(native, rng)
        compare_ids(native, rng)
        compare_rows(native, rng)
        compare_places(native, rng)
        compare_leaves(native, rng)
        compare_searches(native, rng, file)
        compare_streams(native, rng)
    run_out_of_memory(native)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
