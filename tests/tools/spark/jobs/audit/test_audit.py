from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from riverbed.store.format.text import split_words
from riverbed.tools.spark.jobs.page import Bars, Card, Column, Lines, Page, Row, Section, Table, html_page
from tests.support.servers import RiverbedServer
from tests.tools.spark.group_session import HOSTILE, Session, play
from tests.tools.spark.jobruns import report, run

NASTY = ["<script>alert(1)</script>", "a|b`c`", "$\\frac{1}{$", "**x**\n# y", "漢字 \U0001f600", "&amp;<!--", "x" * 500]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return play(tmp_path_factory.mktemp("session"))


@pytest.fixture(scope="module")
def audited(spark: SparkSession, session: Session) -> tuple[dict[str, Any], Path]:
    """The report as JSON, and the directory of all of its forms."""
    out = session.directory.parent / "report"
    result = run("audit", session.snapshot, "--since", session.earlier, "--out", out)
    assert (result.exit_code, result.stderr) == (1, "")
    found: dict[str, Any] = json.loads((out / "audit.json").read_text())
    return found, out


def named(found: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(each["group"], each["consumer"], each["id"]) for each in found}


def test_exactly_what_was_planted_is_named(audited: tuple[dict[str, Any], Path], session: Session) -> None:
    found, _ = audited

    assert named(found["poison"]) == session.poison
    assert named(found["stuck"]) == session.stuck
    assert named(found["orphaned"]) == session.orphaned
    assert found["pending"] == {"orphaned": 2, "poison": 1, "stuck": 7, "released": 0, "in work": 5}
    assert found["poison"][0]["deliveries"] == 7
    assert [(each["consumer"], each["pending"]) for each in found["idle_consumers"]] == [("dead-2", 4), ("dead-1", 3)]
    assert [each["group"] for each in found["unread_groups"]] == ["forgotten"]
    assert found["problems"] == 1 + 7 + 2 + 2 + 1


def test_groups_tell_what_holds_the_stream_and_what_was_done_since(
    audited: tuple[dict[str, Any], Path], session: Session
) -> None:
    found, _ = audited

    [pin] = [each for each in found["pins"] if each.get("key") == "orders"]
    # The group that nobody reads needs all; of the first six entries it is the only one.
    assert (pin["group"], pin["is_pending"], pin["kept_alone"], pin["needed_by_none"]) == ("forgotten", False, 6, 0)
    groups = {each["group"]: each for each in found["groups"] if each.get("key") == "orders"}
    assert (groups["shipping"]["lag"], groups["shipping"]["pending"]) == (3, 4)
    assert (groups["shipping"]["delivered_since"], groups["shipping"]["settled_since"]) == (5, 3)
    assert (groups["billing"]["delivered_since"], groups["billing"]["lag"]) == (0, 40)
    members = {each["consumer"]: each for each in found["consumers"] if each["group"] in groups}
    # What alive had was claimed by others, and one of dead-2's was claimed by alive.
    assert {name: members[name]["lost_since"] for name in ("alive", "dead-1", "dead-2")} == {
        "alive": 1,
        "dead-1": 0,
        "dead-2": 1,
    }
    assert (members["truck-1"]["taken_since"], members["truck-2"]["settled_since"]) == (2, 0)


def test_entries_are_summed_up_by_consumer_with_what_the_first_one_holds(
    audited: tuple[dict[str, Any], Path], session: Session
) -> None:
    found, _ = audited
    names = ("group", "consumer", "entries", "most_deliveries", "payload")

    assert [[each[name] for name in names] for each in found["stuck_by_consumer"]] == [
        ["billing", "dead-1", 3, 1, "n=7"],
        ["billing", "dead-2", 2, 1, "n=18"],
        ["shipping", "truck-2", 2, 1, "n=50"],
    ]
    assert [[each[name] for name in names] for each in found["poison_by_consumer"]] == [
        ["billing", "victim-4", 1, 7, "n=6"]
    ]
    assert [[each[name] for name in names] for each in found["orphaned_by_consumer"]] == [
        ["billing", "dead-2", 2, 1, None]
    ]
    firsts = {each["consumer"]: each["first_id"] for each in found["stuck_by_consumer"]}
    assert firsts["dead-1"] == min(entry_id for _, name, entry_id in session.stuck if name == "dead-1")


def test_what_costs_most_comes_first_with_a_command_that_real_servers_take(
    audited: tuple[dict[str, Any], Path], session: Session, tmp_path: Path
) -> None:
    found, _ = audited
    costs = [(each["problem"], each["group"], each["consumer"], each["cost"]) for each in found["costs"]]
    shutil.copytree(session.directory, tmp_path / "data")

    with RiverbedServer(tmp_path / "data", tmp_path) as server, server.client() as client:
        replies = [client.ask(*split_words(each["command"].encode())) for each in found["costs"]]
        summary = client.tree("XPENDING", "orders", "billing")

    assert costs[0] == ("group that is not read", "forgotten", None, 58)
    assert costs[1][:3] == ("poison", "billing", "victim-4")
    assert [cost for *_, cost in costs] == sorted((cost for *_, cost in costs), reverse=True)
    assert not [reply for reply in replies if reply.startswith(b"-")]
    assert b"rescue" in str(summary).encode()


def test_the_page_is_one_file_and_runs_nothing(audited: tuple[dict[str, Any], Path]) -> None:
    _, out = audited
    page = (out / "audit.html").read_text()

    assert HOSTILE[0].decode() not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not re.search(r"<script|<i>|javascript:|<link|<img|@import|url\(|src=|href=\"[^#]", page)
    assert "<h1>Audit of now</h1>" in page


def test_the_page_shows_what_the_report_says(audited: tuple[dict[str, Any], Path]) -> None:
    found, out = audited
    page = (out / "audit.html").read_text()
    cards = {title: int(value) for value, title in re.findall(r'class="card[^>]*><b>(\d+)</b><span>([^<]*)', page)}

    assert cards == {
        "poison entries": found["pending"]["poison"],
        "stuck entries": found["pending"]["stuck"],
        "orphaned entries": found["pending"]["orphaned"],
        "idle consumers with entries": len(found["idle_consumers"]),
        "groups that are not read": len(found["unread_groups"]),
        "pending entries": sum(found["pending"].values()),
    }
    lists = ("costs", "idle_consumers", "unread_groups", "pins", "groups", "consumers")
    kinds = ("poison_by_consumer", "stuck_by_consumer", "orphaned_by_consumer")
    assert page.count("<tr><td") == sum(len(found[name]) for name in lists + kinds)
    assert re.findall("<figcaption>([^<]*)", page) == [
        "Time since delivery",
        "Deliveries",
        "Lag by group",
        "Pending by consumer",
    ]
    for spread in ("pending_by_age", "pending_by_deliveries"):
        assert all(sum(found[spread][kind].values()) <= count for kind, count in found["pending"].items())


def test_without_a_directory_the_counts_are_printed(spark: SparkSession, session: Session) -> None:
    result = run("audit", session.snapshot)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "1 poison entry",
        "7 stuck entries",
        "2 orphaned entries",
        "2 idle consumers",
        "1 unread group",
        "report: --out DIR writes it, --json prints it",
    ]


def test_reports_that_are_there_are_not_replaced(audited: tuple[dict[str, Any], Path], session: Session) -> None:
    _, out = audited

    result = run("audit", session.snapshot, "--out", out)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "audit.html exists; --overwrite replaces it" in result.stderr


def test_nothing_wrong_is_status_0(spark: SparkSession, session: Session) -> None:
    wide = ["--stuck-after", "9d", "--idle-after", "9d", "--poison-from", "99", "--match", "*script*"]

    found = report("audit", session.snapshot, *wide)

    assert (found["problems"], found["streams"], found["entries"], found["pending"]["in work"]) == (0, 1, 1, 1)
    assert found["poison"] == found["stuck"] == found["orphaned"] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{now}", "--stuck-after", "soon"], "'soon' is not a time such as 90s"),
        (["{now}", "--since", "{now}"], "now was not taken before now"),
        (["{directory}"], "has 2 snapshots, earlier to now: name one of them"),
        (["{directory}/none"], "there is no snapshot"),
    ],
)
def test_what_cannot_be_audited_is_told(
    spark: SparkSession, session: Session, arguments: list[str], reason: str
) -> None:
    words = [word.format(now=session.snapshot, directory=session.snapshot.parent) for word in arguments]

    result = run("audit", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in " ".join(result.stderr.split())


# -- pages and charts --------------------------------------------------------------------------------------------------


def page_about(names: list[str]) -> str:
    numbers = [float(n) for n in range(len(names))]
    charts = [
        Bars(names[0], names, dict.fromkeys(names[:3], numbers), names),
        Lines(names[0], [1_763_683_200_000 + n * 60_000 for n in range(7)], dict.fromkeys(names[:2], numbers)),
    ]
    columns = [Column(name, lambda row: str(row["name"]), kind) for name in names for kind in ("name", "id", "number")]
    rows: list[Row] = [{"name": name} for name in names]
    section = Section(names[0], names[3], charts, Table(columns, rows, names[3]))
    return html_page(
        Page(names[0], {name: name for name in names}, [Card(names[0], names[1], "a", is_bad=True)], [section])
    )


class Elements(HTMLParser):
    """What a browser makes of a page: its elements with the names of their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[str]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, [name for name, _ in attrs]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_hostile_text_stays_text() -> None:
    hostile, harmless = Elements(page_about(NASTY)), Elements(page_about(list("abcdefg")))

    assert hostile.elements == harmless.elements
    for nasty, plain in zip(NASTY, "abcdefg", strict=True):
        assert hostile.texts.count(nasty) == harmless.texts.count(plain) >= 3 * len(NASTY)


def test_charts_of_nothing_and_of_one_moment_are_drawn() -> None:
    charts = [Bars("b", [], {"n": []}, []), Bars("z", ["a"], {"n": [0]}, [""]), Lines("l", [0], {"x": [0.0]})]

    page = html_page(Page("t", {}, [], [Section("s", "", charts)]))

    assert page.count("<figure>") == 3
    assert 'points="0.0,160.0"' in page


def test_bars_are_as_long_as_their_values() -> None:
    bars = Bars("b", ["x", "y"], {"n": [1, 4], "m": [2, 0]}, ["3", "4"])

    page = html_page(Page("t", {}, [], [Section("s", "", [bars])]))

    assert re.findall(r"width:([0-9.]+)%;background", page) == ["25.00", "50.00", "100.00", "0.00"]


def test_bars_that_differ_by_powers_of_ten_are_logarithmic_and_say_so() -> None:
    near, far = (
        html_page(Page("t", {}, [], [Section("s", "", [Bars("b", ["x", "y"], {"n": values}, ["", ""])])]))
        for values in ([2, 100], [9, 999_999])
    )

    assert re.findall(r"width:([0-9.]+)%;background", near) == ["2.00", "100.00"]
    assert re.findall(r"width:([0-9.]+)%;background", far) == ["16.67", "100.00"]
    assert ("logarithmic" in near, "logarithmic" in far) == (False, True)


def test_cards_lead_to_the_sections_that_they_count(audited: tuple[dict[str, Any], Path]) -> None:
    _, out = audited
    page = (out / "audit.html").read_text()

    anchors = re.findall(r'href="#([^"]*)"', page)

    assert len(anchors) == 6
    assert all(page.count(f'<section id="{anchor}">') == 1 for anchor in anchors)
