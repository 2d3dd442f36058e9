"""Gives one target inputs that were found, and others made of these; in a process, so that its death is seen.

    python -m tests.support.fuzzing.worker pages --count 20000 --seed 3 --keep tests/corpora/pages

Each input is written to a file before the target gets it.  Exit status 1: an exception that was not promised, an input
that took longer than `HANGS_S`, or more memory than `MAX_BYTES`; with --keep the input becomes a file of the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from tests.support.fuzzing.targets import TARGETS, random_commands

CORPORA: Final = Path(__file__).resolve().parents[2] / "corpora"
HANGS_S: Final = 60  # of processor time
MAX_BYTES: Final = 1 << 30
_MAX_INPUT: Final = 1 << 18
_ODD: Final = (
    *(b"\0", b"\xff", b"\r\n", b"\n", b" ", b'"', b"\\", b"{", b"[", b"]" * 9, b"-1", b"0", b"*0\r\n", b"$-1\r\n"),
    *(b"9" * 20, b"9" * 5000, b"[" * 100_000, b"{" * 5000, b"4294967296", b"1e999", b"NaN", b"null", b"\xed\xa0\x80"),
    *(b"\xff" * 8, b"\0" * 16, b"#CK:crc32c=00000000;len=1;off=1;t=1\r\n", b"../x", b"/dev/zero", b"a" * 70_000),
)


def mutated(data: bytes, corpus: list[bytes], chance: random.Random) -> bytes:
    """`data` with a few changes."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 2, 4, 8, 100, 4096)))
        match chance.randrange(8):
            case 0 | 1 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 2 if at < len(found):
                found[at] = chance.randrange(256)
            case 3:
                del found[at:end]
            case 4:
                found[at:at] = found[at:end]
            case 5:
                found[at:at] = chance.choice(_ODD)
            case 6:
                other = chance.choice(corpus)
                begin = chance.randrange(len(other) + 1)
                found[at:end] = other[begin : begin + end - at]
            case _:
                digits = [place for place in range(len(found)) if 48 <= found[place] <= 57] if len(found) < 4096 else []
                if digits:
                    found[chance.choice(digits)] = 48 + chance.randrange(10)
    return bytes(found[:_MAX_INPUT])


def inputs(name: str, count: int, seed: int) -> Iterator[bytes]:
    """The corpus, then `count` others."""
    corpus = [path.read_bytes() for path in sorted((CORPORA / name).iterdir())]
    yield from corpus
    chance = random.Random(seed)
    for _ in range(count):
        if name == "commands" and chance.random() < 0.7:
            yield random_commands(chance)
        else:
            yield mutated(chance.choice(corpus), corpus, chance)


def hang(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no end after {HANGS_S} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--count", type=int, default=0, help="inputs beyond those of the corpus")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where an input that fails is kept")
    parser.add_argument("--current", type=Path, help="the file that has the input of this moment")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGPROF, hang)
    with tempfile.TemporaryDirectory(prefix="riverbed-fuzz-") as place:
        current = asked.current or Path(place) / "current"
        (Path(place) / "target").mkdir()
        target = TARGETS[asked.target](Path(place) / "target")
        size = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_DATA, (size + MAX_BYTES, resource.RLIM_INFINITY))
        tried = 0
        for data in inputs(asked.target, asked.count, asked.seed):
            current.write_bytes(data)
            signal.setitimer(signal.ITIMER_PROF, HANGS_S)
            try:
                target(data)
            except Exception:
                sys.stdout.write(f"{asked.target}: {data[:200]!r}\n{traceback.format_exc()}\n")
                if asked.keep is not None:
                    name = hashlib.sha256(data).hexdigest()[:12]
                    (asked.keep / name).write_bytes(data)
                return 1
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            tried += 1
    sys.stdout.write(f"{asked.target}: {tried} inputs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
