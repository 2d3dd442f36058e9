"""XADD IDMP and IDMPAUTO, XCFGSET, XIDMPRECORD.  Redis 8.6 has them; there is none here to compare with."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import xxhash

from riverbed.store.format.idempotence import RECORD_KEY_BYTES
from riverbed.store.streams.idempotence import Idempotence
from tests.support.raw import RawClient, parse
from tests.support.read_log import LogTail
from tests.support.servers import RiverbedServer
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_blocked

OK = b"+OK\r\n"
SYNTAX = b"-ERR syntax error\r\n"
NOT_INTEGER = b"-ERR value is not an integer or out of range\r\n"
INVALID_ID = b"-ERR Invalid stream ID specified as stream command argument\r\n"
NO_SUCH_KEY = b"-ERR no such key\r\n"
ARITY = b"-ERR wrong number of arguments for 'xadd' command\r\n"
TWICE = b"-ERR syntax error, IDMP/IDMPAUTO specified multiple times\r\n"
ONLY_AUTO = b"-ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs\r\n"
AUTO_EMPTY_PID = b"-ERR syntax error, IDMPAUTO requires a non-empty producer ID\r\n"
EMPTY_PID = b"-ERR syntax error, IDMP requires a non-empty producer ID\r\n"
EMPTY_IID = b"-ERR syntax error, IDMP requires a non-empty idempotent ID\r\n"


def add(client: RawClient, pid: str | bytes, iid: str | bytes, *options: str | int, key: str = "s") -> bytes:
    """The ID that an idempotent XADD replies."""
    reply = parse(client.ask("XADD", key, "IDMP", pid, iid, *options, "*", "f", "v"))
    assert reply.kind == "$", reply
    return reply.text


def tracked(client: RawClient, key: str = "s") -> dict[str, int]:
    """The idempotence fields of XINFO STREAM."""
    pairs = parse(client.ask("XINFO", "STREAM", key)).pairs()
    return {name.text.decode(): int(value.text) for name, value in pairs if name.text[:3] in (b"idm", b"pid", b"iid")}


def counts(client: RawClient, key: str = "s") -> tuple[int, int, int, int]:
    """-> (producers, records, records ever, duplicates)"""
    found = tracked(client, key)
    return found["pids-tracked"], found["iids-tracked"], found["iids-added"], found["iids-duplicates"]


# -- XADD: errors ------------------------------------------------------------------------------------------------------

ERRORS: list[tuple[list[str], bytes]] = [
    (["IDMP", "p", "i", "IDMP", "p", "i", "*"], TWICE),
    (["IDMP", "p", "i", "IDMPAUTO", "p", "*"], TWICE),
    (["IDMPAUTO", "p", "IDMPAUTO", "p", "*"], TWICE),
    (["IDMPAUTO", "p", "IDMP", "p", "i", "*"], TWICE),
    (["IDMPAUTO", "", "*"], AUTO_EMPTY_PID),
    (["IDMP", "", "i", "*"], EMPTY_PID),
    (["IDMP", "p", "", "*"], EMPTY_IID),
    (["IDMP", "", "", "*"], EMPTY_PID),
    (["IDMP", "p", "i", "1-1"], ONLY_AUTO),
    (["IDMP", "p", "i", "5-*"], ONLY_AUTO),
    (["IDMP", "p", "i", "0-0"], ONLY_AUTO),
    (["IDMPAUTO", "p", "1-1"], ONLY_AUTO),
    (["NOMKSTREAM", "IDMPAUTO", "p", "5-*"], ONLY_AUTO),
    (["IDMP", "p", "i", "x"], INVALID_ID),
    # positional: the star is the iid, and the field fails as an ID
    (["IDMP", "p", "*"], INVALID_ID),
    (["IDMPAUTO", "*"], INVALID_ID),
]


@pytest.mark.parametrize(("options", "error"), ERRORS, ids=[" ".join(options) for options, _ in ERRORS])
def test_xadd_refuses_and_makes_no_key(client: RawClient, options: list[str], error: bytes) -> None:
    assert client.ask("XADD", "s", *options, "f", "v") == error
    assert client.ask("EXISTS", "s") == b":0\r\n"


@pytest.mark.parametrize("words", ["IDMP p i *", "IDMP p i * f", "IDMPAUTO p * f v g", "IDMP p i", "IDMPAUTO p *"])
def test_fields_are_needed(client: RawClient, words: str) -> None:
    assert client.ask("XADD", "s", *words.split()) == ARITY


def test_option_words_come_in_any_case_and_order(client: RawClient) -> None:
    first = parse(client.ask("XADD", "s", "idmp", "p", "i", "maxlen", "5", "nomkstream", "*", "f", "v"))
    assert first.kind == "nil$"
    made = add(client, "p", "i")
    for options in (
        *(["MAXLEN", "~", "5", "IDMP", "p", "i"], ["NOMKSTREAM", "iDmP", "p", "i"], ["IDMP", "p", "i", "MINID", "1"]),
        ["KEEPREF", "IDMP", "p", "i"],
    ):
        assert parse(client.ask("XADD", "s", *options, "*", "f", "v")).text == made
    assert client.ask("XLEN", "s") == b":1\r\n"


# -- XADD: what it does ------------------------------------------------------------------------------------------------


def test_a_duplicate_replies_the_original_id_and_nothing_else(client: RawClient) -> None:
    made = add(client, "p", "i")
    for _ in range(3):
        assert add(client, "p", "i") == made
    # whatever the fields are
    assert parse(client.ask("XADD", "s", "IDMP", "p", "i", "*", "other", "fields")).text == made
    assert client.ask("XLEN", "s") == b":1\r\n"
    assert counts(client) == (1, 1, 1, 4)


def test_a_duplicate_does_not_trim(client: RawClient) -> None:
    made = add(client, "p", "i")
    for number in range(5):
        client.ask("XADD", "s", "*", "n", number)
    assert add(client, "p", "i", "MAXLEN", 0) == made
    assert client.ask("XLEN", "s") == b":6\r\n"


def test_a_duplicate_is_answered_even_if_its_entry_was_deleted_since(client: RawClient) -> None:
    made = add(client, "p", "i")
    client.ask("XDEL", "s", made)
    assert add(client, "p", "i") == made
    trimmed = add(client, "p", "j", "MAXLEN", 0)
    assert add(client, "p", "j") == trimmed
    assert client.ask("XLEN", "s") == b":0\r\n"
    assert counts(client) == (1, 2, 2, 2)


def test_a_duplicate_wakes_nobody(client: RawClient, server: RiverbedServer) -> None:
    made = add(client, "p", "i")
    with server.client() as reader:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", made)
        until_blocked(client, 1)
        add(client, "p", "i")
        assert b"blocked_clients:1\r\n" in client.ask("INFO", "clients")
        new = add(client, "p", "j")
        assert reader.reply() == (
            b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$%d\r\n%b\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n" % (len(new), new)
        )


def test_a_duplicate_does_not_break_a_watch(client: RawClient) -> None:
    add(client, "p", "i")
    client.ask("WATCH", "s")
    add(client, "p", "i")
    client.ask("MULTI")
    client.ask("PING")
    assert client.ask("EXEC") == b"*1\r\n+PONG\r\n"


def test_duplicates_are_found_within_one_pipeline_and_one_transaction(client: RawClient) -> None:
    words = ("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
    assert len(set(client.pipeline([words] * 10))) == 1
    other = ("XADD", "s", "IDMP", "p", "j", "*", "f", "v")
    replies = client.pipeline([("MULTI",), other, other, ("EXEC",)])
    first, second = parse(replies[-1]).children or ()
    assert first == second
    assert client.ask("XLEN", "s") == b":2\r\n"


def test_an_iid_is_known_per_producer_and_per_stream(client: RawClient) -> None:
    made = {add(client, pid, "i", key=key) for pid in ("p", "q", "r") for key in ("s", "t")}
    assert client.ask("XLEN", "s") == client.ask("XLEN", "t") == b":3\r\n"
    assert {add(client, pid, "i", key=key) for pid in ("p", "q", "r") for key in ("s", "t")} == made
    assert counts(client) == (3, 3, 3, 3)


def test_producers_and_iids_are_binary_and_of_any_length(client: RawClient) -> None:
    names = [b"\x00", b"\xff" * 5000, b"\r\n", b"*", b"0", b"IDMP", b"\x00\x00", "é".encode()]
    made = {(pid, iid): add(client, pid, iid) for pid in names for iid in names}
    assert len(set(made.values())) == len(names) ** 2
    for (pid, iid), entry_id in made.items():
        assert add(client, pid, iid) == entry_id
    assert counts(client)[:2] == (len(names), len(names) ** 2)


def test_the_oldest_record_of_a_producer_goes_when_there_are_too_many(client: RawClient) -> None:
    add(client, "other", "i")
    client.ask("XCFGSET", "s", "IDMP-MAXSIZE", 3)
    other = add(client, "other", "i")
    made = [add(client, "p", f"i{number}") for number in range(5)]
    assert counts(client)[:2] == (2, 4)
    assert [add(client, "p", f"i{number}") for number in (2, 3, 4)] == made[2:]
    assert add(client, "other", "i") == other
    # a hit does not make a record younger
    assert add(client, "p", "i0") not in made
    assert add(client, "p", "i2") not in made


def test_a_record_goes_after_its_duration_and_not_before(client: RawClient) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    assert client.ask("XCFGSET", "s", "IDMP-DURATION", 1) == OK
    made = add(client, "p", "i")
    made_ms = int(made.split(b"-")[0])
    while tracked(client)["pids-tracked"]:
        time.sleep(0.02)
    assert time.time() * 1000 >= made_ms + 1000
    # the emptied producer is gone as well, the counters stay
    assert counts(client) == (0, 0, 1, 0)
    assert client.ask("XCFGSET", "s", "IDMP-DURATION", 3600) == OK
    assert add(client, "p", "i") != made
    assert counts(client) == (1, 1, 2, 0)


def test_nomkstream_and_idempotence_on_a_missing_key(client: RawClient) -> None:
    assert client.ask("XADD", "s", "NOMKSTREAM", "IDMP", "p", "i", "*", "f", "v") == b"$-1\r\n"
    assert client.ask("EXISTS", "s") == b":0\r\n"


def test_an_exhausted_stream_still_knows_duplicates(client: RawClient) -> None:
    made = add(client, "p", "i")
    client.ask("XSETID", "s", f"{2**64 - 1}-{2**64 - 1}")
    assert add(client, "p", "i") == made
    refused = client.ask("XADD", "s", "IDMP", "p", "j", "*", "f", "v")
    assert refused.startswith(b"-ERR The stream has exhausted the last possible ID")
    assert counts(client) == (1, 1, 1, 1)


# -- IDMPAUTO ----------------------------------------------------------------------------------------------------------


def content_iid(*pairs: tuple[bytes, bytes]) -> bytes:
    """The 16 bytes of the reference, word by word."""
    mask = 2**64 - 1
    halves = []
    for field, value in pairs:
        digest = xxhash.xxh3_128_intdigest(field + len(field).to_bytes(8, "little") + value)
        halves.append((digest & mask, digest >> 64))
    sums = [sum(half[side] for half in halves) & mask for side in (0, 1)]
    xors = [0, 0]
    for half in halves:
        xors = [xors[0] ^ half[0], xors[1] ^ half[1]]

    def rotated(word: int) -> int:
        return (word << 1 | word >> 63) & mask

    low, high = sums[0] ^ rotated(xors[1]), sums[1] ^ rotated(xors[0])
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def test_idmpauto_does_not_depend_on_the_order_of_fields(client: RawClient) -> None:
    made = client.ask("XADD", "s", "IDMPAUTO", "p", "*", "a", "1", "b", "2", "c", "3")
    assert client.ask("XADD", "s", "IDMPAUTO", "p", "*", "c", "3", "a", "1", "b", "2") == made
    others = [
        *(("a", "1", "b", "2"), ("a", "1", "b", "3", "c", "2"), ("a", "2", "b", "1", "c", "3"), ("a1", "", "b", "2")),
        *(("a", "1b", "", "2"), ("a", "1", "a", "1"), ("b", "2", "a", "1", "c", "3", "a", "1")),
    ]
    replies = [client.ask("XADD", "s", "IDMPAUTO", "p", "*", *words) for words in others]
    assert len({made, *replies}) == len(others) + 1


def test_idmpauto_is_per_producer(client: RawClient) -> None:
    replies = {client.ask("XADD", "s", "IDMPAUTO", pid, "*", "f", "v") for pid in ("p", "q")}
    assert len(replies) == 2


@pytest.mark.parametrize(
    "pairs",
    [((b"f", b"v"),), ((b"", b""),), ((b"a", b"1"), (b"b", b"2"), (b"a", b"1")), ((b"\x00" * 300, b"\xff" * 70_000),)],
)
def test_the_iid_of_idmpauto_is_the_sum_over_the_pairs(
    client: RawClient, pairs: tuple[tuple[bytes, bytes], ...]
) -> None:
    words = [word for pair in pairs for word in pair]
    made = parse(client.ask("XADD", "s", "IDMPAUTO", "p", "*", *words)).text
    assert add(client, "p", content_iid(*pairs)) == made
    assert client.ask("XIDMPRECORD", "s", "p", content_iid(*pairs), made) == OK
    assert counts(client) == (1, 1, 1, 1)


# -- what else happens to the records ----------------------------------------------------------------------------------


def test_records_follow_the_key(client: RawClient) -> None:
    made = add(client, "p", "i")
    client.ask("COPY", "s", "copy")
    client.ask("RENAME", "s", "renamed")
    client.ask("MOVE", "copy", 1)
    assert add(client, "p", "i", key="renamed") == made
    client.ask("SELECT", 1)
    assert add(client, "p", "i", key="copy") == made
    # a copy has records of its own
    add(client, "p", "j", key="copy")
    client.ask("SELECT", 0)
    add(client, "p", "j", key="renamed")
    assert counts(client, "renamed") == (1, 2, 2, 1)
    client.ask("DEL", "renamed")
    add(client, "p", "i", key="renamed")
    assert counts(client, "renamed") == (1, 1, 1, 0)


def test_xinfo_tells_about_idempotence_even_if_it_is_unused(client: RawClient) -> None:
    client.ask("XADD", "s", "*", "f", "v")
    assert tracked(client) == {
        "idmp-duration": 100,
        "idmp-maxsize": 100,
        "pids-tracked": 0,
        "iids-tracked": 0,
        "iids-added": 0,
        "iids-duplicates": 0,
    }


def test_the_servers_settings_are_the_defaults_of_streams(client: RawClient) -> None:
    client.ask("XADD", "own", "*", "f", "v")
    client.ask("XCFGSET", "own", "IDMP-DURATION", 7)
    assert client.ask("CONFIG", "SET", "stream-idmp-duration", 50, "stream-idmp-maxsize", 2) == OK
    try:
        client.ask("XADD", "s", "*", "f", "v")
        assert (tracked(client)["idmp-duration"], tracked(client)["idmp-maxsize"]) == (50, 2)
        assert (tracked(client, "own")["idmp-duration"], tracked(client, "own")["idmp-maxsize"]) == (7, 2)
        for number in range(5):
            add(client, "p", f"i{number}")
        assert counts(client) == (1, 2, 5, 0)
    finally:
        client.ask("CONFIG", "SET", "stream-idmp-duration", 100, "stream-idmp-maxsize", 100)


# -- XCFGSET -----------------------------------------------------------------------------------------------------------

XCFGSET_ERRORS = [
    ("", b"-ERR At least one parameter must be specified\r\n"),
    ("IDMP-DURATION", SYNTAX),
    ("IDMP-MAXSIZE", SYNTAX),
    ("WHAT 5", SYNTAX),
    ("IDMP-DURATION 5 WHAT", SYNTAX),
    ("IDMP-DURATION x", NOT_INTEGER),
    ("IDMP-MAXSIZE x", NOT_INTEGER),
    ("IDMP-DURATION 0", b"-ERR IDMP-DURATION must be between 1 and 86400 seconds\r\n"),
    ("IDMP-DURATION -1", b"-ERR IDMP-DURATION must be between 1 and 86400 seconds\r\n"),
    ("IDMP-DURATION 86401", b"-ERR IDMP-DURATION must be between 1 and 86400 seconds\r\n"),
    ("IDMP-MAXSIZE 0", b"-ERR IDMP-MAXSIZE must be between 1 and 10000 entries\r\n"),
    ("IDMP-MAXSIZE 10001", b"-ERR IDMP-MAXSIZE must be between 1 and 10000 entries\r\n"),
    ("IDMP-DURATION 5 IDMP-DURATION 5", b"-ERR IDMP-DURATION specified multiple times\r\n"),
    ("IDMP-MAXSIZE 5 IDMP-MAXSIZE 5", b"-ERR IDMP-MAXSIZE specified multiple times\r\n"),
    ("IDMP-DURATION 5 IDMP-MAXSIZE 0", b"-ERR IDMP-MAXSIZE must be between 1 and 10000 entries\r\n"),
]


@pytest.mark.parametrize(("words", "error"), XCFGSET_ERRORS, ids=[words for words, _ in XCFGSET_ERRORS])
def test_xcfgset_refuses_and_changes_nothing(client: RawClient, words: str, error: bytes) -> None:
    assert client.ask("XCFGSET", "s", *words.split()) == NO_SUCH_KEY
    made = add(client, "p", "i")
    before = tracked(client)
    assert client.ask("XCFGSET", "s", *words.split()) == error
    assert tracked(client) == before
    assert add(client, "p", "i") == made


def test_xcfgset_needs_a_key(client: RawClient) -> None:
    assert client.ask("XCFGSET") == b"-ERR wrong number of arguments for 'xcfgset' command\r\n"


@pytest.mark.parametrize("words", ["IDMP-DURATION 86400", "idmp-maxsize 10000", "IDMP-MAXSIZE 1 IDMP-DURATION 1"])
def test_a_changed_setting_drops_all_records_and_keeps_the_counters(client: RawClient, words: str) -> None:
    made = add(client, "p", "i")
    add(client, "p", "i")
    assert client.ask("XCFGSET", "s", *words.split()) == OK
    assert counts(client) == (0, 0, 1, 1)
    assert add(client, "p", "i") != made
    assert counts(client) == (1, 1, 2, 1)


def test_the_same_setting_again_changes_nothing(client: RawClient, server: RiverbedServer) -> None:
    made = add(client, "p", "i")
    tail = LogTail(server.directory)
    assert client.ask("XCFGSET", "s", "IDMP-DURATION", 100, "IDMP-MAXSIZE", 100) == OK
    assert tail.lines() == []
    assert add(client, "p", "i") == made
    assert client.ask("XCFGSET", "s", "IDMP-DURATION", 60, "IDMP-MAXSIZE", 100) == OK
    assert (tracked(client)["idmp-duration"], tracked(client)["idmp-maxsize"]) == (60, 100)


# -- XIDMPRECORD -------------------------------------------------------------------------------------------------------

XIDMPRECORD_ERRORS: list[tuple[list[str], bytes]] = [
    (["s", "p", "i", "x"], INVALID_ID),
    (["s", "", "", "x"], INVALID_ID),
    (["s", "p", "i", "*"], INVALID_ID),
    (["s", "", "i", "1-1"], b"-ERR producer ID must be non-empty\r\n"),
    (["s", "", "", "1-1"], b"-ERR producer ID must be non-empty\r\n"),
    (["s", "p", "", "1-1"], b"-ERR idempotent ID must be non-empty\r\n"),
    (["none", "", "i", "1-1"], b"-ERR producer ID must be non-empty\r\n"),
    (["none", "p", "i", "1-1"], NO_SUCH_KEY),
    (["s", "p", "i", "1-2"], b"-ERR No such message in stream\r\n"),
    (["s", "p", "i", "0-0"], b"-ERR No such message in stream\r\n"),
    (["s", "p", "known", "1-1"], b"-ERR IID already exists for this producer with a different stream ID\r\n"),
    (["s", "p", "i"], b"-ERR wrong number of arguments for 'xidmprecord' command\r\n"),
    (["s", "p", "i", "1-1", "x"], b"-ERR wrong number of arguments for 'xidmprecord' command\r\n"),
]


@pytest.mark.parametrize(
    ("words", "error"), XIDMPRECORD_ERRORS, ids=[" ".join(words) for words, _ in XIDMPRECORD_ERRORS]
)
def test_xidmprecord_refuses(client: RawClient, words: list[str], error: bytes) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    add(client, "p", "known")
    assert client.ask("XIDMPRECORD", *words) == error
    assert counts(client) == (1, 1, 1, 0)


def test_xidmprecord_records_an_entry_that_is_there(client: RawClient) -> None:
    client.ask("XADD", "s", "1-1", "f", "v")
    client.ask("XADD", "s", f"{int(time.time() * 1000)}-5", "f", "v")
    made = parse(client.ask("XREVRANGE", "s", "+", "-", "COUNT", 1)).children
    assert made is not None
    entry_id = (made[0].children or ())[0].text
    assert client.ask("XIDMPRECORD", "s", "p", "i", entry_id) == OK
    assert client.ask("XIDMPRECORD", "s", "p", "i", entry_id) == OK
    assert counts(client) == (1, 1, 1, 0)
    assert add(client, "p", "i") == entry_id
    assert client.ask("XIDMPRECORD", "s", "q", "i", entry_id) == OK
    assert counts(client) == (2, 2, 2, 1)


def test_xidmprecord_may_evict(client: RawClient) -> None:
    entry_id = add(client, "other", "i")
    client.ask("XCFGSET", "s", "IDMP-MAXSIZE", 2)
    for number in range(4):
        assert client.ask("XIDMPRECORD", "s", "p", f"i{number}", entry_id) == OK
    assert counts(client) == (1, 2, 5, 0)


def test_a_record_that_cannot_evict_a_damaged_one_is_not_made(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XCFGSET s IDMP-MAXSIZE 2 IDMP-DURATION 86400")
        await ticks.ask(client, "XADD s IDMP p a * f v", "XADD s IDMP p b * f v")
        ticks.engine.checkpoint()
        ticks.keep_transaction()
        cursor = ticks.engine.txn.cursor("idmp")
        key, row = next((key, row) for key, row in cursor.iternext() if len(key) == RECORD_KEY_BYTES)
        cursor.put(key, row[:-1] + bytes([row[-1] ^ 1]))
        ticks.engine.checkpoint()
        logged = len(ticks.batches())
        for _ in range(2):
            [reply] = await ticks.ask(client, "XIDMPRECORD s p new 1-1")
            assert b" is damaged: its checksum does not fit" in reply
            stream = ticks.engine.txn.databases[0].stream(b"s", 0)
            assert stream is not None
            assert Idempotence(stream).tracked() == (1, 2)
        assert len(ticks.batches()) == logged
        ticks.close(save=False)

    in_loop(body())


# -- the log, and a kill -----------------------------------------------------------------------------------------------


def test_the_log_has_the_entry_and_its_record_in_one_batch(client: RawClient, server: RiverbedServer) -> None:
    tail = LogTail(server.directory)
    made = add(client, "p", "i", "MAXLEN", 5)
    settings = b"XCFGSET s IDMP-DURATION 100 IDMP-MAXSIZE 100"
    assert tail.batches() == [[b"XADD s %b f v" % made, settings, b"XIDMPRECORD s p i %b" % made]]
    add(client, "p", "i")
    # a batch that only we understand begins with a PING, so that it has an offset of its own
    assert tail.batches() == [[b"PING", b"XIDMPHIT s"]]
    gone = add(client, "p", "j", "MAXLEN", 0)
    assert tail.batches() == [[b"XADD s MAXLEN = 0 %b f v" % gone, b"XIDMPRECORD s p j %b" % gone]]
    client.ask("XCFGSET", "s", "idmp-maxsize", 5, "idmp-duration", 100)
    assert tail.batches() == [[b"PING", b"XCFGSET s IDMP-MAXSIZE 5"]]


def test_a_log_command_is_unknown_to_clients(client: RawClient) -> None:
    assert client.ask("XIDMPHIT", "s").startswith(b"-ERR unknown command 'XIDMPHIT'")


def test_records_survive_a_kill(server: RiverbedServer, client: RawClient) -> None:
    made = {(pid, iid): add(client, pid, iid) for pid in ("p", "q") for iid in ("i", "j", "k" * 900)}
    client.ask("XADD", "t", "*", "f", "v")
    client.ask("XCFGSET", "t", "IDMP-MAXSIZE", 2)
    kept = [add(client, "p", f"i{number}", "MAXLEN", 1, key="t") for number in range(4)][2:]
    add(client, "p", "i")
    before = tracked(client), tracked(client, "t")
    server.kill()
    server.start()
    with server.client() as again:
        assert (tracked(again), tracked(again, "t")) == before
        for (pid, iid), entry_id in made.items():
            assert add(again, pid, iid) == entry_id
        assert [add(again, "p", f"i{number}", key="t") for number in (2, 3)] == kept
