from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from riverbed.tools.spark.jobs.charts import lying_bars, over_time, short_number, standing_bars
from riverbed.tools.spark.jobs.page import Card, Chart, Column, Page, Section, Table, html_page, markdown
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
    assert (pin["group"], pin["is_pending"], pin["kept_alone"], pin["needed_by_nobody"]) == ("forgotten", False, 6, 0)
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


def test_the_page_is_one_file_and_runs_nothing(audited: tuple[dict[str, Any], Path]) -> None:
    _, out = audited
    page = (out / "audit.html").read_text()

    assert HOSTILE[0].decode() not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not re.search(r"<script|<i>|javascript:|<link|@import", page)
    assert set(re.findall(r"(?:src|href)=\"(\w+:[^,]*)", page)) == {"data:image/svg+xml;base64"}
    text = (out / "audit.md").read_text()
    assert "# Audit of now" in text
    assert "\\<script\\>alert(1)\\</script\\>\\|\\`x\\`" in text


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


def nasty_page() -> Page:
    columns = (Column(NASTY[0], is_name=True), Column("n", is_number=True), Column("id", is_id=True))
    table = Table(columns, [[name, name, name] for name in NASTY], NASTY[3])
    chart = Chart(NASTY[0], lying_bars(NASTY, [float(n) for n in range(len(NASTY))], NASTY))
    facts = [(name, name) for name in NASTY]
    return Page(NASTY[0], facts, [Card(NASTY[0], NASTY[1], True)], [Section(NASTY[0], NASTY[3], (chart,), (table,))])


def test_hostile_text_stays_text() -> None:
    page, text = html_page(nasty_page()), markdown(nasty_page())

    assert "<script" not in page
    assert page.count("<tr>") == len(NASTY) + 1
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# \\<script\\>alert(1)\\</script\\>",
        "## \\<script\\>alert(1)\\</script\\>",
    ]
    rows = [line for line in lines if line.startswith("| ") and line.count(" | ") == 2]
    assert len(rows) == len(NASTY) + 1


def test_charts_take_any_label(capfd: pytest.CaptureFixture[str]) -> None:
    numbers = [float(n) for n in range(len(NASTY))]

    for svg in (
        standing_bars(NASTY, dict.fromkeys(NASTY[:3], numbers), NASTY[0]),
        lying_bars(NASTY, numbers, NASTY),
        lying_bars([], [], []),
        over_time([0], {NASTY[0]: [0.0]}, "entries/min"),
        over_time([1_763_683_200_000 + n * 60_000 for n in range(7)], dict.fromkeys(NASTY[:2], numbers), NASTY[2]),
    ):
        assert svg.rstrip().endswith(b"</svg>")
        assert b"<script" not in svg
    assert capfd.readouterr() == ("", "")


def test_numbers_on_an_axis_are_short() -> None:
    assert [short_number(value) for value in (0, 0.25, 950, 1000, 1250, 99_960, 3e6, 2e12)] == [
        "0",
        "0.25",
        "950",
        "1 k",
        "1.2 k",
        "100 k",
        "3 M",
        "2000 G",
    ]
