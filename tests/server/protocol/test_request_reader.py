"""Requests out of bytes: every case whole, split at each byte, byte by byte, and with a tail behind it."""

from __future__ import annotations

import resource
import socket
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from shutil import which
from subprocess import DEVNULL, Popen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.server.protocol.request_reader import RequestReader
from riverbed.server.protocol.strict_reader import INLINE_LIMIT_BYTES
from riverbed.store.format.text import split_words
from riverbed.store.wire import count_of, words_of
from tests.support.effort import measured
from tests.support.waiting import until

PING = b"*1\r\n$4\r\nPING\r\n"
LIMIT = INLINE_LIMIT_BYTES


def wire(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


# bytes -> requests
SOUND = [
    (PING, [[b"PING"]]),
    (b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", [[b"GET", b""]]),
    (b"*2\r\n$4\r\nECHO\r\n$6\r\n*1\r\n$4\r\n", [[b"ECHO", b"*1\r\n$4"]]),
    (b"*2\r\n$4\r\nECHO\r\n$14\r\n" + PING + b"\r\n", [[b"ECHO", PING]]),
    (b"*2\r\n$4\r\nECHO\r\n$2\r\n+a\r\n" + PING, [[b"ECHO", b"+a"], [b"PING"]]),
    (b"*2\r\n$4\r\nECHO\r\n$2\r\n~1\r\n" + PING, [[b"ECHO", b"~1"], [b"PING"]]),
    (b"*2\r\n$4\r\nECHO\r\n$6\r\n*99999\r\n", [[b"ECHO", b"*99999"]]),
    (PING * 3, [[b"PING"]] * 3),
    (b"*0\r\n", []),
    (b"*-1\r\n", []),
    (b"*-5\r\n" + PING, [[b"PING"]]),
    (PING + b"*0\r\n" + PING, [[b"PING"], [b"PING"]]),
    # neither Redis nor we look at the two bytes behind a word, nor at what follows a CR
    (b"*1\r\n$4\r\nPINGxx" + PING, [[b"PING"], [b"PING"]]),
    (b"*1\rX$4\rXPING\r\n" + PING, [[b"PING"], [b"PING"]]),
    (b"*1\r\n$4\r\nPING*2\r\nECHO a\r\n" + PING, [[b"PING"], [b"ECHO", b"a"], [b"PING"]]),
    (b"*1\r\n$4\r\nPING+a~1\r\n" + PING, [[b"PING"], [b"~1"], [b"PING"]]),
    (b"PING\r\n", [[b"PING"]]),
    (b"PING\n", [[b"PING"]]),
    (b"\r\n\n  \r\nPING\r\n", [[b"PING"]]),
    (b"  SET\t a\x0bb  c \r\n", [[b"SET", b"a\x0bb", b"c"]]),
    (b"+PING :1\r\n", [[b"+PING", b":1"]]),
    (b'ECHO "a\\x41\\n\\r\\t\\b\\a\\"\\q\\x4" ab"c d"\r\n', [[b"ECHO", b'aA\n\r\t\b\a"qx4', b"abc d"]]),
    (b"ECHO 'a\\'b\\n' '' \"\"\r\n", [[b"ECHO", b"a'b\\n", b"", b""]]),
    (b"PING\r\n" + PING + b"PING\r\n" + PING, [[b"PING"]] * 4),
    (b"ECHO " + b"a" * (LIMIT - 5) + b"\n", [[b"ECHO", b"a" * (LIMIT - 5)]]),
]

# bytes -> requests before the error, error line
BROKEN = [
    (b"*x\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (b"*\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (b"*01\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (b"*+1\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (b"*-0\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (b"*2147483648\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (b"*99999999999999999999999\r\n", [], b"ERR Protocol error: invalid multibulk length"),
    (PING + b"*3000000000\r\n", [[b"PING"]], b"ERR Protocol error: invalid multibulk length"),
    (b"*1\r\nx4\r\n", [], b"ERR Protocol error: expected '$', got 'x'"),
    (b"*1\r\n\r\n", [], b"ERR Protocol error: expected '$', got ' '"),
    (b"*1\r\n:4\r\n", [], b"ERR Protocol error: expected '$', got ':'"),
    (b"*1\r\n*1\r\n$4\r\nPING\r\n", [], b"ERR Protocol error: expected '$', got '*'"),
    (b"*1\r\n%1\r\n$1\r\na\r\n$1\r\nb\r\n", [], b"ERR Protocol error: expected '$', got '%'"),
    (b"*1\r\n>300000000\r\n", [], b"ERR Protocol error: expected '$', got '>'"),
    (b"*2\r\n$4\r\nPING\r\n~300000000\r\n", [], b"ERR Protocol error: expected '$', got '~'"),
    (b"*1\r\n" + b"*9999\r\n" * 2000, [], b"ERR Protocol error: expected '$', got '*'"),
    (b"*2\r\n=8\r\ntxt:PING\r\n+aaaaaaaaaaaa\r\n", [], b"ERR Protocol error: expected '$', got '='"),
    (b"*1\r\n+PING\r\n", [], b"ERR Protocol error: expected '$', got '+'"),
    (b"*1\r\n=8\r\ntxt:PING\r\n", [], b"ERR Protocol error: expected '$', got '='"),
    (b"*1\r\n=5\r\ntxt:a\r\n" + wire([b"ECHO", b"a"]), [], b"ERR Protocol error: expected '$', got '='"),
    (b"*1\r\n(12\r\n", [], b"ERR Protocol error: expected '$', got '('"),
    (b"*1\r\n_\r\n", [], b"ERR Protocol error: expected '$', got '_'"),
    (b"*1\r\n#f\r\n", [], b"ERR Protocol error: expected '$', got '#'"),
    (b"*1\r\n-ERR\r\n", [], b"ERR Protocol error: expected '$', got '-'"),
    (PING + b"*1\r\n\xff4\r\n", [[b"PING"]], b"ERR Protocol error: expected '$', got '\xff'"),
    (b"*1\r\n$x\r\n", [], b"ERR Protocol error: invalid bulk length"),
    (b"*1\r\n$-1\r\n", [], b"ERR Protocol error: invalid bulk length"),
    (b"*1\r\n$\r\n", [], b"ERR Protocol error: invalid bulk length"),
    (b"*1\r\n$01\r\n", [], b"ERR Protocol error: invalid bulk length"),
    (b"*2\r\n$4\r\nPING\r\n$536870913\r\n", [], b"ERR Protocol error: invalid bulk length"),
    (b'PING "\r\n', [], b"ERR Protocol error: unbalanced quotes in request"),
    (b"PING 'a'b\r\n", [], b"ERR Protocol error: unbalanced quotes in request"),
    (b"PING 'a\\'\r\n", [], b"ERR Protocol error: unbalanced quotes in request"),
    (b"PING\r\nPING \"a\\\"\r\n", [[b"PING"]], b"ERR Protocol error: unbalanced quotes in request"),
    (b"POST / HTTP/1.1\r\nHost: a\r\n", [], b""),
    (b"PING\r\nhost: a\r\n", [[b"PING"]], b""),
    (b"~1\r\n$4\r\nPING\r\n'", [[b"~1"], [b"$4"], [b"PING"]], None),
    (PING + b"~1\r\n$4\r\nPING\r\n", [[b"PING"], [b"~1"], [b"$4"], [b"PING"]], None),
    (PING + b"#f\r\n", [[b"PING"], [b"#f"]], None),
]  # fmt: skip

LONG_LINES = [
    (b"*" + b"1" * LIMIT, b"ERR Protocol error: too big mbulk count string"),
    (b"*1\r\n$" + b"1" * LIMIT, b"ERR Protocol error: too big bulk count string"),
    (b"A" * (LIMIT + 1), b"ERR Protocol error: too big inline request"),
]


def new_reader() -> RequestReader:
    return RequestReader(authenticated=True)


def read(chunks: list[bytes], reader: RequestReader | None = None) -> tuple[list[list[bytes]], bytes | None]:
    """Requests and error line of a connection that sent `chunks`."""
    reader = reader or new_reader()
    requests = []
    for chunk in chunks:
        requests += reader.feed(chunk)
    return requests, None if reader.error is None else reader.error.text


def ways_to_send(data: bytes) -> Iterator[list[bytes]]:
    yield [data]
    for cut in range(1, min(len(data), 300)):
        yield [data[:cut], data[cut:]]
    yield [data[at : at + 1] for at in range(len(data))]
    yield [data[at : at + 3] for at in range(0, len(data), 3)]


@pytest.mark.parametrize(("data", "requests"), SOUND)
def test_a_sound_chunk_is_read_the_same_however_it_arrives(data: bytes, requests: list[list[bytes]]) -> None:
    for authenticated in (True, False):
        for chunks in ways_to_send(data):
            reader = RequestReader(authenticated=authenticated)
            if not authenticated and any(len(word) > 16384 for request in requests for word in request):
                continue
            assert read(chunks, reader) == (requests, None)
            assert reader.pending_bytes == 0


@pytest.mark.parametrize(("data", "requests"), SOUND)
def test_a_tail_behind_a_sound_chunk_waits_for_its_rest(data: bytes, requests: list[list[bytes]]) -> None:
    for tail in (b"*", b"*2\r\n", b"*2\r\n$4\r\nECHO\r\n", b"*2\r\n$4\r\nECHO\r\n$5\r\nabc", b"EC"):
        for chunks in ways_to_send(data):
            reader = new_reader()
            assert read([*chunks[:-1], chunks[-1] + tail], reader) == (requests, None)
            assert reader.pending_bytes >= len(tail) - 13
    reader = new_reader()
    assert read([data + b"*2\r\n$4\r\nECHO\r\n$5\r\nabc", b"de\r\n" + PING], reader)[0][len(requests) :] == [
        [b"ECHO", b"abcde"],
        [b"PING"],
    ]


@pytest.mark.parametrize(("data", "requests", "error"), BROKEN)
def test_a_broken_chunk_yields_what_came_before_and_the_error(
    data: bytes, requests: list[list[bytes]], error: bytes | None
) -> None:
    for chunks in ways_to_send(data):
        assert read(chunks) == (requests, error)
        if error is not None:
            assert read([*chunks, PING]) == (requests, error)  # nothing is read behind an error
    many = [[b"PING"]] * 40
    assert read([PING * 40 + data]) == (many + requests, error)


@pytest.mark.parametrize(("data", "error"), LONG_LINES)
def test_a_line_has_at_most_64_kilobytes(data: bytes, error: bytes) -> None:
    assert read([data]) == ([], error)
    assert read([data[at : at + 1000] for at in range(0, len(data), 1000)]) == ([], error)
    assert read([PING + data]) == ([[b"PING"]], error)
    assert read([data + b"\r\n" + PING]) == ([], error)
    assert read([data[:-1]]) == ([], None)


def test_a_client_without_authentication_may_send_ten_words_of_16_kilobytes() -> None:
    largest = b"*10\r\n" + b"$16384\r\n%b\r\n" % (b"x" * 16384) * 10
    assert read([largest], RequestReader()) == ([[b"x" * 16384] * 10], None)
    words = b"ERR Protocol error: unauthenticated multibulk length"
    size = b"ERR Protocol error: unauthenticated bulk length"
    for data, error in ((b"*11\r\n", words), (b"*10\r\n$16385\r\n", size)):
        for chunks in ways_to_send(data):
            assert read(chunks, RequestReader()) == ([], error)
            assert read(chunks) == ([], None)


def test_a_large_request_behind_auth_waits_for_its_outcome() -> None:
    auth = b"*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n"
    large = b"*11\r\n" + b"$1\r\na\r\n" * 11
    long = b"*2\r\n$4\r\nECHO\r\n$20000\r\n%b\r\n" % (b"x" * 20000)
    for behind, request in ((large, [b"a"] * 11), (long, [b"ECHO", b"x" * 20000])):
        reader = RequestReader()
        assert reader.feed(auth + behind + PING) == [[b"AUTH", b"x"]]
        assert reader.has_more
        assert reader.error is None
        reader.authenticated = True
        assert reader.feed(b"") == [request, [b"PING"]]
        assert not reader.has_more
        assert reader.pending_bytes == 0

        reader = RequestReader()
        assert reader.feed(auth + behind) == [[b"AUTH", b"x"]]
        assert reader.feed(b"") == []
        assert reader.error is not None
        assert reader.error.text.startswith(b"ERR Protocol error: unauthenticated")


def test_a_bulk_longer_than_the_limit_is_refused_by_its_announcement() -> None:
    for chunks in ways_to_send(PING + b"*2\r\n$4\r\nECHO\r\n$301\r\n"):
        reader = RequestReader(authenticated=True, max_bulk_bytes=300)
        assert read(chunks, reader) == ([[b"PING"]], b"ERR Protocol error: invalid bulk length")
    reader = RequestReader(authenticated=True, max_bulk_bytes=300)
    assert read([b"*1\r\n$300\r\n%b\r\n" % (b"x" * 300)], reader) == ([[b"x" * 300]], None)


def test_a_request_larger_than_the_query_limit_closes_the_connection_silently() -> None:
    reader = RequestReader(authenticated=True, max_query_bytes=10_000)
    assert read([PING * 5_000], reader) == ([[b"PING"]] * 5_000, None)  # many small ones are no large one
    assert read([b"*1\r\n$20000\r\n", b"x" * 9_000, b"x" * 2_000], reader) == ([], b"")
    assert reader.pending_bytes == 0
    reader = RequestReader(authenticated=True, max_query_bytes=10_000)
    assert read([b"*1000000\r\n"] + [b"$1\r\na\r\n"] * 1_000, reader) == ([], b"")
    assert reader.pending_bytes == 0
    # refused at the word that is too much, not when the chunk that also ends the request was taken apart
    reader = RequestReader(authenticated=True, max_query_bytes=10_000)
    assert read([b"*1000\r\n$1\r\n", b"a\r\n" + b"$1\r\na\r\n" * 999], reader) == ([], b"")
    assert reader.pending_bytes == 0


def test_a_pipeline_of_some_ten_kilobytes_is_parsed_at_once() -> None:
    reader = RequestReader(authenticated=True)
    reader.add(wire([b"XADD", b"s", b"*", b"f", b"v" * 400]) * 64)
    assert count_of(reader.next_requests()) == 64
    assert not reader.has_more


def test_announcing_a_billion_words_costs_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with measured() as effort:
        for head in (b"*1000000000\r\n", b"*2147483647\r\n$4\r\nPING\r\n", PING + b"*99999999\r\n"):
            for _ in range(100):
                reader = new_reader()
                reader.feed(head)
                assert reader.error is None
                assert reader.pending_bytes < 100
    assert effort.units < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes on Linux


def test_a_request_of_very_many_words_is_read_whole() -> None:
    words = [b"XACK", b"key", b"group", *(b"%d-0" % number for number in range(20_000))]
    data = wire(words)
    assert read([PING + data + PING]) == ([[b"PING"], words, [b"PING"]], None)
    assert read([data[at : at + 5000] for at in range(0, len(data), 5000)]) == ([words], None)


def test_a_large_bulk_is_not_copied_for_each_chunk() -> None:
    size = 64 << 20
    chunk = b"x" * (1 << 14)
    reader = new_reader()
    with measured() as effort:
        assert reader.feed(b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % size) == []
        for _ in range(size // len(chunk)):
            assert reader.feed(chunk) == []
        requests = reader.feed(b"\r\n" + PING)
    assert [len(word) for word in requests[0]] == [4, size]
    assert requests[1:] == [[b"PING"]]
    assert reader.pending_bytes == 0
    # 4,096 copies of it would take minutes
    assert effort.units < 200


def test_alternating_between_inline_and_arrays_is_not_quadratic() -> None:
    data = (PING + b"PING\r\n" + b"*0\r\n") * 40_000
    with measured() as effort:
        requests = read([data])[0]
    assert len(requests) == 80_000
    assert effort.units < 200


ODD_WORDS = [b"", b"\r\n", PING, b"*12345", b"+", b"=", b"(1", b"~1\r\n", b">", b"a" * 400]
WORDS = st.lists(st.binary(max_size=12) | st.sampled_from(ODD_WORDS), min_size=1, max_size=8)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(requests=st.lists(WORDS, max_size=20), places=st.lists(st.integers(0, 1 << 20), max_size=8), twice=st.booleans())
def test_any_requests_cut_anywhere_come_out_as_they_went_in(
    requests: list[list[bytes]], places: list[int], twice: bool
) -> None:
    if twice:  # equal neighbours: the place of the last one is then not found by searching
        requests = [request for request in requests for _ in range(3)]
    reader = new_reader()
    data = b"".join(map(wire, requests))
    assert read(cut(data, places), reader) == (requests, None)
    assert reader.pending_bytes == 0


PIECES = st.sampled_from(
    [b"*1\r\n", b"*2\r\n", b"$4\r\n", b"$0\r\n", b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"PING", b"\r\n", b"\r", b"\n",
     b'"', b" ",
     b"+a\r\n", b":1\r\n", b"_\r\n", b"~1\r\n", b"%1\r\n", b">1\r\n", b"|1\r\n", b"#f\r\n", b"=5\r\ntxt:a\r\n",
     b"(1\r\n", PING, PING * 3, PING * 50, b"*2\r\n$4\r\nECHO\r\n$5\r\nabcde\r\n"]
)  # fmt: skip


@settings(max_examples=400)
@given(pieces=st.lists(PIECES, max_size=10), places=st.lists(st.integers(0, 1 << 20), max_size=6))
def test_how_bytes_are_cut_never_changes_what_they_mean(pieces: list[bytes], places: list[int]) -> None:
    data = b"".join(pieces)
    strict = RequestReader(authenticated=True, max_bulk_bytes=8)  # too small for hiredis: all by the strict parser
    lenient = RequestReader(authenticated=True, max_bulk_bytes=8)
    expected = read([data[at : at + 1] for at in range(len(data))], strict)
    lenient.max_bulk_bytes = 1 << 20
    assert read(cut(data, places), lenient) == expected
    assert lenient.pending_bytes == strict.pending_bytes


@given(words=st.lists(st.binary(max_size=10), max_size=5))
def test_quoted_words_survive_the_inline_parser(words: list[bytes]) -> None:
    line = b" ".join(b'"%b"' % b"".join(b"\\x%02x" % byte for byte in word) for word in words)
    assert split_words(line) == words


# -- the same bytes to a real server -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = which("redis-server")
    if program is None:
        pytest.fail("redis-server is needed to compare error texts with; `make test` installs it")
    folder: Path = tmp_path_factory.mktemp("redis")
    path = str(folder / "s")
    words = [program, "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(folder)]
    process = Popen(words, stdout=DEVNULL, stderr=DEVNULL)

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as peer:
            return peer.connect_ex(path) == 0

    try:
        until(listens, "a Redis that listens")
        yield path
    finally:
        process.terminate()
        process.wait()


def answer_of(path: str, data: bytes) -> bytes:
    """All that the server says to `data`; ends with b"(closed)" when it hangs up by itself."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.settimeout(120)
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass
        answer = b""
        try:
            while piece := peer.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    "data",
    [data for data, _, _ in BROKEN] + [data for data, _ in LONG_LINES] + [data for data, _ in SOUND],
)
def test_error_texts_are_those_of_a_real_server(real_redis: str, data: bytes) -> None:
    requests, error = read([data])
    echoes = b""
    for request in requests:
        if request[0] == b"PING" and len(request) == 1:
            echoes += b"+PONG\r\n"
        elif request[0] == b"ECHO" and len(request) == 2:
            echoes += b"$%d\r\n%b\r\n" % (len(request[1]), request[1])
        else:
            echoes += b"-"  # an unknown command or wrong arity: one error line
    expected = echoes if not error else echoes + b"-" + error + b"\r\n"
    answer = answer_of(real_redis, data)
    if error == b"":
        assert expected.startswith(answer)  # Redis drops even what it has answered
    elif b"-" in echoes:
        assert answer.count(b"\r\n") == expected.count(b"\r\n") + echoes.count(b"-")
    else:
        assert answer == expected


def test_empty_lines_before_between_and_behind_requests_are_passed_over() -> None:
    empty = b"\r\n\n\r\n" * 1_000
    for chunks in ways_to_send(b"\n\r\n" + PING + b"\r\n\n" + b"ECHO a\r\n" + b"\n" + PING + b"\r\n"):
        assert read(chunks) == ([[b"PING"], [b"ECHO", b"a"], [b"PING"]], None)
    assert read([empty + PING + empty + PING]) == ([[b"PING"]] * 2, None)


@pytest.mark.parametrize("behind", [b"*-\r\n", b"*01\r\n", b"*\r\n", b"*x\r\n", b"*$4\r\n", b" *1\r\n"])
def test_requests_without_words_end_where_another_one_begins(behind: bytes) -> None:
    """The expression for them must not take a byte of what only begins like them, whatever CPython's version."""
    alone = read([behind])
    for before in (b"\r\n", b"*0\r\n", b" \t\n*-1\r\n", b"*0\r\n\r\n"):
        for chunks in ways_to_send(before + behind):
            assert read(chunks) == alone


@pytest.mark.parametrize("authenticated", [False, True])
@pytest.mark.parametrize("nothing", [b"\r\n", b"\n", b" \t\r\n", b"*0\r\n", b"*-1\r\n*0\r\n\n", b"*-99\r\n  \n"])
def test_a_flood_of_requests_without_words_is_passed_over_in_few_calls(nothing: bytes, authenticated: bool) -> None:
    for chunks in ways_to_send(nothing + PING + nothing * 2 + b"ECHO a\r\n" + nothing + PING + nothing):
        assert read(chunks) == ([[b"PING"], [b"ECHO", b"a"], [b"PING"]], None)
    reader = RequestReader(authenticated=authenticated)
    reader.add(nothing * (200_000 // len(nothing)) + PING)
    requests, calls = [], 0
    while reader.has_more:
        requests += words_of(reader.next_requests())
        calls += 1
    assert requests == [[b"PING"]]
    assert calls < 40


@pytest.mark.parametrize("data", [b"* 0\r\n", b"*-0\r\n", b"*00\r\n", b"*+0\r\n", b"*-01\r\n", b"*-\r\n"])
def test_counts_that_are_no_numbers_are_refused_behind_none_as_well(data: bytes) -> None:
    assert read([b"*0\r\n" + data + PING]) == ([], b"ERR Protocol error: invalid multibulk length")


def test_few_short_words_are_taken_in_one_call_however_many_have_arrived() -> None:
    """Others have their turn between two calls."""
    words = [b"XREAD", b"BLOCK", b"0", b"STREAMS", *[b"key"] * 10_000, *[b"$"] * 10_000]
    sent = wire(words)
    reader = RequestReader(authenticated=True)
    assert reader.feed(sent[:100]) == []
    reader.add(sent[100:])
    most = 0
    requests: list[list[bytes]] = []
    while reader.has_more:
        before = reader.pending_bytes
        requests += words_of(reader.next_requests())
        most = max(most, reader.pending_bytes - before)
    assert requests == [words]
    assert 0 < most < 60 * 2_500


def test_a_long_word_is_copied_once_when_it_is_whole() -> None:
    reader = RequestReader(authenticated=True)
    size = 16 << 20
    tracemalloc.start()
    requests = reader.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % size)
    piece = bytes(256 << 10)
    for _ in range(size // len(piece)):
        requests += reader.feed(piece)
    assert requests == []
    tracemalloc.reset_peak()
    requests = reader.feed(b"\r\n")
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert requests == [[b"SET", b"k", bytes(size)]]
    assert held < 1.2 * size
    assert peak < 2.4 * size  # the word beside the bytes that arrived
