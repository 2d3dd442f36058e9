from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from riverbed.server.glob import Glob
from tests.conftest import base_seed
from tests.support.effort import measured, undisturbed, unit_s
from tests.support.raw import RawClient, parse
from tests.support.servers import RedisServer, RiverbedServer


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (b"*", [b"", b"a", b"a\nb\x00\xff"], []),
        (b"h?llo", [b"hello", b"h\nllo"], [b"hllo", b"heello"]),
        (b"h*llo", [b"hllo", b"heeeello"], [b"hell", b"ahllo"]),
        (b"h[ae]llo", [b"hello", b"hallo"], [b"hillo", b"h[ae]llo"]),
        (b"h[^e]llo", [b"hallo"], [b"hello", b"hllo"]),
        (b"h[c-a]llo", [b"hallo", b"hbllo", b"hcllo"], [b"hdllo", b"h-llo"]),
        (b"a\\*b", [b"a*b"], [b"axb", b"a\\*b"]),
        (b"[\\]-]", [b"]", b"-"], [b"\\"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"[]", [], [b"", b"[", b"]"]),
        (b"[^]", [b"x", b"]"], [b""]),
        (b"[abc", [b"a", b"b", b"c"], [b"[abc", b"d"]),
        (b"a.c", [b"a.c"], [b"abc"]),
        (b"x*y*z", [b"xyz", b"xyyzz", b"x y z"], [b"xzy"]),
        (b"*ab", [b"aab", b"abab"], [b"aba"]),
        (b"", [b""], [b"a"]),
        (b"**", [b"a"], [b""]),
        (b"?*", [b"a", b"ab"], [b""]),
        (b"[a-\xff]", [b"a", b"\xff", b"\x00", b"0"], [b"b", b"\x80"]),  # Redis's bytes have a sign
        (b"[a\\", [b"a", b"\\"], [b"b"]),
        (b"[^", [b"x"], [b""]),
        (b"[", [], [b"[", b""]),
        (b"[]a]", [], [b"a]", b"]"]),
        (b"a[", [], [b"a", b"a["]),
        (b"\\", [b"\\"], [b""]),
        (b"*\x00?", [b"\x00a", b"a\x00\xff"], [b"\x00", b"ab"]),
    ],
)
def test_pattern_matches_what_redis_says_it_does(pattern: bytes, matching: list[bytes], others: list[bytes]) -> None:
    matches = Glob(pattern).matches
    assert [text for text in matching if not matches(text)] == []
    assert [text for text in others if matches(text)] == []


def test_case_is_ignored_only_when_asked() -> None:
    assert Glob(b"MaX*[a-c]", ignore_case=True).matches(b"mAxmemB")
    assert not Glob(b"MaX*").matches(b"max")
    assert Glob(b"[^A]", ignore_case=True).matches(b"b")
    assert not Glob(b"[^A]", ignore_case=True).matches(b"a")


def test_the_test_of_a_pattern_says_what_the_pattern_matches() -> None:
    rnd = random.Random(base_seed())
    for _ in range(20_000):
        glob = Glob(bytes(rnd.choices(b"aab*?[\\]", k=rnd.randrange(6))), ignore_case=not rnd.randrange(4))
        text = bytes(rnd.choices(b"abA*", k=rnd.randrange(6)))
        assert glob.test()(text) == glob.matches(text), (glob.pattern, text)
    for pattern in (b"", b"a", b"a*", b"*a", b"a*a", b"*" * 2, b"x" * 3000, b"x" * 3000 + b"*"):
        for text in (b"", b"a", b"aa", b"ab", b"ba", b"x" * 3000, b"x" * 3001, b"*"):
            assert Glob(pattern).test()(text) == Glob(pattern).matches(text), (pattern, text)


def test_an_escaped_byte_of_a_class_keeps_its_case() -> None:
    assert not Glob(b"[\\M]ax", ignore_case=True).matches(b"max")
    assert Glob(b"[^\\M]ax", ignore_case=True).matches(b"max")
    assert Glob(b"\\Max", ignore_case=True).matches(b"max")


def test_a_thousand_stars_are_the_most() -> None:
    text = b"a" * 3000
    for pattern, most in ((b"a*%ba", 1000), (b"a*%b", 1001), (b"*a%b", 1000)):
        repeated, _, end = pattern.partition(b"%b")
        assert Glob(repeated * most + end).matches(text)
        assert not Glob(repeated * (most + 1) + end).matches(text)


# -- what patterns cost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        b"[^x]" * 8000,
        b"[^x]" * 250_000,
        b"a" * (1 << 20),
        b"*a" * (1 << 19),
        b"?a" * (1 << 19),
        b"\\a" * (1 << 19),
        b"*" * (1 << 20),
        b"[" + b"a-z" * 350_000,
        b"[^" + b"\\x" * 500_000 + b"]",
    ],
)
def test_a_long_pattern_is_parsed_no_further_than_a_text_can_match(pattern: bytes) -> None:
    with measured() as effort:
        glob = Glob(pattern)
        tracemalloc.start()
        try:
            for length in range(20):
                glob.matches(b"a" * length)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
    assert effort.units < 200  # regular expressions took minutes


def test_a_long_pattern_matches_a_text_as_long() -> None:
    with measured() as effort:
        for pattern, text in (
            (b"[^x]" * 100_000, b"a" * 100_000),
            (b"a" * (1 << 20), b"a" * (1 << 20)),
            (b"*?a" + b"*" * 1000 + b"b" * 100_000, b"a" * 50_000 + b"b" * 100_000),
            (b"\\a" * 100_000 + b"*", b"a" * 100_001),
        ):
            assert Glob(pattern).matches(text)
            assert not Glob(pattern).matches(text[:-2])
    assert effort.units < 400


def test_hostile_pattern_costs_no_exponential_time() -> None:
    matches = Glob(b"a*" * 30 + b"b").matches
    with measured() as effort:
        assert not matches(b"a" * 2000)
    assert effort.units < 20


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (b"*" + b"?a" * 10_000 + b"b*", b"a" * 100_000),
        (b"[^x]" * 250_000, b"a" * 300_000),
        (b"[" + b"a-z" * 350_000, b"a"),
        (b"?" * 1_000_000, b"a" * 1_000_000),
    ],
)
def test_what_takes_long_is_done_in_steps(pattern: bytes, text: bytes) -> None:
    steps = Glob(pattern).steps(text)
    longest = 0.0
    with undisturbed():
        for _ in range(300):
            begun = time.thread_time()
            try:
                next(steps)
            except StopIteration:
                break
            longest = max(longest, time.thread_time() - begun)
    assert longest < 2 * unit_s()


# -- the same to a real server -----------------------------------------------------------------------------------------

LETTERS = "abc-]^[\\*?A\n\x00\x7f\x80\xf0\xff"


def made_up(rng: random.Random, letters: str, length: int) -> bytes:
    return "".join(rng.choice(letters) for _ in range(length)).encode("latin-1")


def keys_found(client: RawClient, patterns: list[bytes]) -> list[set[bytes]]:
    replies = client.pipeline([("KEYS", pattern) for pattern in patterns])
    return [{node.text for node in parse(reply).children or ()} for reply in replies]


@pytest.mark.parametrize("seed", range(base_seed(), base_seed() + 3))
def test_random_patterns_find_the_keys_that_redis_finds(redis_server: RedisServer, seed: int) -> None:
    rng = random.Random(seed)
    keys = {made_up(rng, LETTERS, length) for length in range(6) for _ in range(60)}
    patterns = [made_up(rng, LETTERS + "**??[[]]^-\\", length) for length in range(10) for _ in range(200)]
    patterns += [made_up(rng, "ab*", 12) for _ in range(200)]
    with redis_server.client() as client:
        client.pipeline([("SET", key, 1) for key in keys])
        found = keys_found(client, patterns)
    for pattern, expected in zip(patterns, found, strict=True):
        matches = Glob(pattern).matches
        assert {key for key in keys if matches(key)} == expected, pattern


def test_random_patterns_find_the_settings_that_redis_finds(redis_server: RedisServer) -> None:
    rng = random.Random(base_seed())
    letters = "mMaAxXcCtTiIeEoOuU*?[]^-\\"
    patterns = ["*" + made_up(rng, letters, rng.randrange(1, 7)).decode() + "*" for _ in range(600)]
    with redis_server.client() as client:
        names = [node.text for node in client.tree("CONFIG", "GET", "*").children or ()][::2]
        replies = client.pipeline([("CONFIG", "GET", pattern) for pattern in patterns])
    for pattern, reply in zip(patterns, replies, strict=True):
        matches = Glob(pattern.encode(), ignore_case=True).matches
        found = {node.text for node in (parse(reply).children or ())[::2]}
        assert {name for name in names if matches(name)} == found, pattern


def test_every_command_with_a_pattern_answers_as_redis_does(
    redis_server: RedisServer, riverbed: RiverbedServer
) -> None:
    rng = random.Random(base_seed())
    keys = sorted({made_up(rng, "ab\xff-", length) for length in range(5) for _ in range(9)} | {b""})
    patterns = [made_up(rng, "ab\xff-*?[]^", length) for length in range(6) for _ in range(40)]
    patterns += [b"*", b"**", b"", b"a" * 5000, b"[^b]" * 8000, b"*a" * 5000]
    answers = []
    for server in (redis_server, riverbed):
        with server.client() as client, server.client() as listener, server.client() as other:
            client.pipeline([("XADD", key, "1-1", "f", "v") for key in keys])
            other.pipeline([("SUBSCRIBE", key) for key in keys])
            listener.pipeline([("PSUBSCRIBE", pattern) for pattern in dict.fromkeys(patterns)])
            commands: list[tuple[bytes | str | int, ...]] = []
            for pattern in patterns:
                commands += [("KEYS", pattern), ("SCAN", 0, "MATCH", pattern, "COUNT", 1000)]
                commands += [("PUBSUB", "CHANNELS", pattern), ("CONFIG", "GET", b"maxclients" + pattern)]
            commands += [("PUBLISH", key, "m") for key in keys]
            answers.append([sorted(reply.split(b"\r\n")) for reply in client.pipeline(commands)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("places", [1, 3, 31, 32, 33, 70, 2049, 2081])
def test_a_segment_without_a_literal_is_found_wherever_it_is(places: int) -> None:
    glob = Glob(b"*" + b"[a-c]" * places + b"[xy]*[x]")
    inner = b"abc" * (places // 3 + 1)
    for before in (0, 1, 31, 2015, 2016, 2047, 2048, 2049, 4096):
        text = b"z" * before + inner[:places]
        assert glob.matches(text + b"y" + b"x"), before
        assert glob.matches(text + b"x" + b"-" * 3000 + b"x"), before
        assert not glob.matches(text + b"x"), "the last place is behind the one before"
        assert not glob.matches(b"z" * before + inner[: places - 1] + b"zyx"), before


def test_a_text_that_nearly_matches_everywhere_costs_little_more_than_a_search() -> None:
    """For an ACL a pattern is matched in one go, and a client may send a key of many megabytes."""
    text = b":" * 1_000_000
    for pattern in (b"*:[0-9]:*", b"*?[0-9]?*", b"x*[:][:][:][0-9]*y"):
        with measured() as effort:
            assert not Glob(pattern).matches(text)
        assert effort.units < 1.5, pattern
