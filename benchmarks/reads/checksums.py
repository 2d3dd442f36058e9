"""What part of a read, and of an append, is the checksum of the entries?

The server's CPU for a request beside the time of the function that compares a hundred rows with their checksums and
cuts these off, in this process, on rows of the entries that are read, and of those that are appended.  The function
also does what rows without checksums would need, so the part is an upper bound.  An append computes what a read
compares.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from benchmarks.load.traffic import FIRST_MS, fields, load, measure
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig
from riverbed.store.format.resp import encode_entry
from riverbed.store.ids import make_id
from riverbed.store.wire import seal, unseal

_ROWS: Final = 100
_TIMES: Final = 2000
_PREFIX: Final = bytes(8)
_WORDS: Final = (b"f1", b"v" * 10, b"f2", b"v" * 10)


def answer(rig: Rig) -> Answer:
    compared = Measurement(f"comparing {_ROWS} rows as they are read", "us")
    computed = Measurement(f"comparing {_ROWS} rows as they are appended", "us")
    read = Measurement("XRANGE COUNT 100: server's CPU", "us/request")
    append = Measurement("XADD, P=64: server's CPU", "us/request")
    of_read = Measurement("part of the checksums in XRANGE COUNT 100", "%", below(3, "%"))
    of_append = Measurement("part of the checksums in XADD", "%", below(3, "%"))
    entries = rig.sizes.read_entries
    for contender in rig.turns(f"a stream of {entries:,}"):
        if contender is Contender.REDIS:
            continue
        with rig.server(contender, "everysec") as server:
            load(server.port, "events", entries, explicit_ids=True)
            words = ("XRANGE", "events", "1__rand_int__", "+", "COUNT", str(_ROWS))
            read.riverbed.append(measure(server, rig.sizes.read_requests, *words, random_below=entries - _ROWS).cpu_us)
            appended = [word.decode() for word in _WORDS]
            requests = rig.sizes.append_requests[64]
            append.riverbed.append(measure(server, requests, "XADD", "other", "*", *appended, depth=64).cpu_us)
        compared.riverbed.append(_compared_us(rows(fields(number) for number in range(_ROWS))))
        computed.riverbed.append(_compared_us(rows([_WORDS] * _ROWS)))
        of_read.riverbed.append(100 * compared.riverbed[-1] / read.riverbed[-1])
        of_append.riverbed.append(100 * computed.riverbed[-1] / _ROWS / append.riverbed[-1])
    return Answer(
        "Checksums of entries",
        f"XRANGE COUNT {_ROWS} and XADD of two small fields, 50 clients",
        [compared, read, of_read, computed, append, of_append],
    )


def rows(entries: Iterable[Sequence[bytes]]) -> list[bytes]:
    """The rows of entries with these fields and values."""
    return [
        seal(_PREFIX, encode_entry(make_id(FIRST_MS + number, 0), list(words))) for number, words in enumerate(entries)
    ]


def _compared_us(sealed: Sequence[bytes]) -> float:
    """The median time of the comparison."""
    times = []
    for _ in range(_TIMES):
        copies = [bytes(bytearray(row)) for row in sealed]  # cut in their place, as those that LMDB has just copied
        begun_s = time.perf_counter()
        assert unseal(_PREFIX, copies) < 0
        times.append(time.perf_counter() - begun_s)
    return median(times) * 1e6
