"""What `native.c` offers: the functions of `reference.py`, whose docstrings say what they do."""

class Run:
    @property
    def count(self) -> int: ...
    @property
    def key(self) -> bytes: ...
    @property
    def word_count(self) -> int: ...
    def requests(self) -> list[list[bytes]]: ...
    def rest(self, at: int, /) -> Run: ...

def parse(runs: int, chunk: bytes, start: int = ..., end: int = ..., /) -> list[list[bytes] | Run] | None: ...
def parse_front(runs: int, chunk: bytes, requests: list[list[bytes] | Run], /) -> int: ...
def expand(
    run: Run,
    at: int,
    most: int,
    room: int,
    prefix: bytes,
    ms: int,
    seq: int,
    log_head: bytes,
    rows: list[tuple[bytes, bytes]],
    /,
) -> tuple[int, int, bytes, bytes]: ...
def expand_one(
    run: Run, prefix: bytes, ms: int, seq: int, log_head: bytes, /
) -> tuple[bytes, bytes, int, bytes, bytes]: ...
def load_xadds(
    run: Run,
    at: int,
    most: int,
    room: int,
    prefix: bytes,
    last: bytes,
    rows: list[tuple[bytes, bytes]],
    /,
) -> tuple[int, int, bytes]: ...
