"""RIVERBED LAG: how many entries a group has not been given, counted where XINFO GROUPS does not know it."""

from __future__ import annotations

import pytest

from tests.support.raw import RawClient


@pytest.fixture
def behind(client: RawClient) -> RawClient:
    """300 entries; some are deleted, and some groups begin in the middle."""
    client.pipeline([("XADD", "s", f"{number}-1", "f", "v") for number in range(1, 301)])
    for name, last in (("all", "0"), ("later", "100-1"), ("done", "$"), ("ahead", f"{2**64 - 1}-{2**64 - 1}")):
        client.ask("XGROUP", "CREATE", "s", name, last)
    client.ask("XDEL", "s", "50-1", "150-1", "151-1")
    return client


@pytest.mark.parametrize(("name", "lag"), [("all", 297), ("later", 198), ("done", 0), ("ahead", 0)])
def test_entries_behind_a_group_are_counted(behind: RawClient, name: str, lag: int) -> None:
    assert behind.ask("RIVERBED", "LAG", "s", name) == b":%d\r\n" % lag
    assert behind.pipeline([("MULTI",), ("RIVERBED", "LAG", "s", name), ("EXEC",)])[-1] == b"*1\r\n:%d\r\n" % lag


def test_what_is_read_or_trimmed_counts_no_more(behind: RawClient) -> None:
    behind.ask("XREADGROUP", "GROUP", "later", "Alice", "COUNT", 10, "STREAMS", "s", ">")
    assert behind.ask("RIVERBED", "LAG", "s", "later") == b":188\r\n"
    behind.ask("XTRIM", "s", "MAXLEN", 20)
    assert behind.ask("RIVERBED", "LAG", "s", "later") == b":20\r\n"


@pytest.mark.parametrize("words", [("none", "all"), ("s", "none")])
def test_a_group_that_is_missing_is_an_error(behind: RawClient, words: tuple[str, str]) -> None:
    assert behind.ask("RIVERBED", "LAG", *words).startswith(b"-NOGROUP No such key")


def test_who_may_not_read_a_stream_may_not_count_its_entries(behind: RawClient) -> None:
    behind.ask("ACL", "SETUSER", "limited", "on", ">pass", "+@all", "~t")
    behind.ask("AUTH", "limited", "pass")
    assert behind.ask("RIVERBED", "LAG", "s", "all").startswith(b"-NOPERM")
