"""A report as one HTML file: facts, cards with the main figures, and sections of charts and tables.

All text comes from outside, keys of clients for example, so all text is escaped.  The page needs no other file: it has
its style, draws its charts with boxes and lines, and can neither run nor fetch anything.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from riverbed.tools.console.keytext import value_text

_COLOURS: Final = ("#2f6fab", "#e0913a", "#c0392b", "#7d8b99", "#4f9d69", "#8e63a9")
# IDs outside of these are not times, or are too far away for the same chart.
MIN_TIME_MS: Final = 946_684_800_000  # 2000-01-01
END_OF_TIME_MS: Final = 253_402_300_800_000  # the year 10000
# From this ratio of the longest bar to the shortest on, the shorter ones would not be visible.
_LOGARITHMIC_FROM: Final = 100

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """`show` makes the text of a cell from its row.

    `kind` is a class of the style: a "number" is right-aligned, a "name" is monospaced, an "id" is broken only
    where it has a line end, a "payload" has more room, and a click selects the whole of a "command".
    """

    title: str
    show: Callable[[Row], str]
    kind: str = "number"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `more`, below it, says what was left out."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart with a bar for each label: the parts in a row, and a text at the end.

    Where the bars differ by powers of ten, their lengths are logarithmic, and the chart says so.
    """

    title: str
    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Lines:
    """A chart with a line for each name: its values at the moments, which are unix milliseconds in even steps."""

    title: str
    moments_ms: Sequence[int]
    lines: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Card:
    """A main figure.  `anchor`: the section that it leads to.  `is_bad`: it shows a problem."""

    title: str
    value: str
    anchor: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A section; `text` is above charts and table, and cards lead to `anchor`."""

    title: str
    text: str = ""
    charts: Sequence[Bars | Lines] = ()
    table: Table | None = None
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    facts: Mapping[str, str]
    cards: Sequence[Card]
    sections: Sequence[Section]


def number_column(name: str, title: str = "", none: str = "-") -> Column:
    """A column of the count `name` of each row, titled `title` or `name`; it shows `none` for an unknown count."""
    return Column(title or name, lambda row: none if row[name] is None else f"{row[name]:,}")


def stream_text(row: Row) -> str:
    """The key of a row, with its database unless the database is 0."""
    key = value_text(row, "key")
    return f"{key} (db {row['db']})" if row["db"] else key


def moment_text(ms: int) -> str:
    """A moment to the second, UTC; the number itself outside the years 1970 to 9999."""
    if not 0 <= ms < END_OF_TIME_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def html_page(page: Page) -> str:
    """The text of the HTML file."""
    facts = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.facts.items())
    return _PAGE.substitute(
        title=escape(page.title),
        facts="\n".join(facts),
        cards="\n".join(map(_card, page.cards)),
        sections="\n".join(line for section in page.sections for line in _section(section)),
    )


def _card(card: Card) -> str:
    content = f"<b>{escape(card.value)}</b><span>{escape(card.title)}</span>"
    name = f'class="card{" bad" * card.is_bad}"'
    return f'<a {name} href="#{escape(card.anchor)}">{content}</a>' if card.anchor else f"<div {name}>{content}</div>"


def _section(section: Section) -> Iterator[str]:
    place = f' id="{escape(section.anchor)}"' if section.anchor else ""
    yield f"<section{place}><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>"
    yield '<div class="charts">'
    for chart in section.charts:
        content = _bars(chart) if isinstance(chart, Bars) else _lines(chart)
        yield f"<figure><figcaption>{escape(chart.title)}</figcaption>{content}</figure>"
    yield "</div>"
    if section.table is not None:
        yield from _table(section.table)
    yield "</section>"


def _table(table: Table) -> Iterator[str]:
    if table.rows:
        titles = (f'<th class="{column.kind}">{escape(column.title)}</th>' for column in table.columns)
        yield f'<div class="table"><table><thead><tr>{"".join(titles)}</tr></thead><tbody>'
        for row in table.rows:
            cells = (
                f'<td class="{column.kind}" data-title="{escape(column.title)}">{escape(column.show(row))}</td>'
                for column in table.columns
            )
            yield f"<tr>{''.join(cells)}</tr>"
        yield "</tbody></table></div>"
    yield f'<p class="more">{escape(table.more)}</p>'


# -- charts ------------------------------------------------------------------------------------------------------------


def _bars(chart: Bars) -> str:
    sums = [sum(values) for values in zip(*chart.parts.values(), strict=True)]
    longest = max(sums, default=0) or 1
    is_logarithmic = longest >= _LOGARITHMIC_FROM * min(filter(None, sums), default=1)
    cells = []
    for place, (label, text) in enumerate(zip(chart.labels, chart.texts, strict=True)):
        length = math.log1p(sums[place]) / math.log1p(longest) if is_logarithmic else sums[place] / longest
        parts = (
            f'<span style="width:{100 * length * values[place] / (sums[place] or 1):.2f}%;background:{colour}"></span>'
            for colour, values in zip(_COLOURS, chart.parts.values(), strict=False)
        )
        name = escape(label)
        cells.append(f'<span title="{name}">{name}</span><span class="bar">{"".join(parts)}</span>')
        cells.append(f"<span>{escape(text)}</span>")
    scale = '<p class="more">Lengths are logarithmic.</p>' * is_logarithmic
    return f'{_legend(chart.parts)}<div class="bars">{"".join(cells)}</div>{scale}'


def _lines(chart: Lines) -> str:
    """A chart of lines, and below it the first moment, the greatest value and the last moment."""
    top = max((max(values, default=0) for values in chart.lines.values()), default=0)
    last = max(len(chart.moments_ms) - 1, 1)
    drawn = []
    for colour, values in zip(_COLOURS, chart.lines.values(), strict=False):
        points = " ".join(
            f"{600 * at / last:.1f},{160 - 155 * value / (top or 1):.1f}" for at, value in enumerate(values)
        )
        drawn.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" vector-effect="non-scaling-stroke" '
            f'points="{points}"/>'
        )
    ends = [moment_text(ms) for ms in (chart.moments_ms[0], chart.moments_ms[-1])] if chart.moments_ms else ["", ""]
    return (
        f'{_legend(chart.lines)}<svg viewBox="0 0 600 160" preserveAspectRatio="none">{"".join(drawn)}</svg>'
        f'<div class="axis"><span>{ends[0]}</span><span>at most {top:,.0f}</span><span>{ends[1]}</span></div>'
    )


def _legend(names: Mapping[str, Any]) -> str:
    """The meaning of the colours, if there are several."""
    if len(names) < 2:
        return ""
    marks = (
        f'<span><span style="color:{colour}">■</span> {escape(name)}</span>'
        for colour, name in zip(_COLOURS, names, strict=False)
    )
    return f'<div class="legend">{"".join(marks)}</div>'


# -- the template ------------------------------------------------------------------------------------------------------

# If something unescaped gets through, the policy forbids it to run or fetch anything.
_PAGE: Final = string.Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { --text: #1c2733; --dim: #5d6b7a; --line: #dfe5ea; --panel: #fff; --back: #f5f7f9; --bad: #b3261e;
  --badback: #fdeceb; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e8ed; --dim: #9aa7b4; --line: #323c46; --panel: #1b2229; --back: #12171c; --bad: #ff8a80;
    --badback: #3a1d1b; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.5rem 4rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .8rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
p { margin: .2rem 0 .8rem; color: var(--dim); max-width: 60rem; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 0 0 1.4rem; }
.facts dt { color: var(--dim); font-size: .8rem; }
.facts dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .8rem; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .7rem 1rem; }
.card b { display: block; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { color: var(--dim); font-size: .85rem; }
a.card { color: inherit; text-decoration: none; }
a.card:hover, a.card:focus-visible { border-color: var(--dim); }
.card.bad { background: var(--badback); border-color: var(--bad); }
.card.bad b { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem;
  margin: .6rem 0 1rem; align-items: start; }
figure { margin: 0; max-width: 44rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: 8px; padding: .8rem 1rem; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .4rem; }
svg { width: 100%; height: 10rem; display: block; border-bottom: 1px solid var(--line); }
.legend, .axis { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .8rem; color: var(--dim); }
.axis { justify-content: space-between; }
.bars { display: grid; grid-template-columns: minmax(3rem, max-content) 1fr max-content; gap: .25rem .6rem;
  font-size: .82rem; align-items: center; }
.bars > :nth-child(3n+1) { max-width: 16rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bars > :nth-child(3n) { color: var(--dim); font-variant-numeric: tabular-nums; }
.bar { display: flex; height: .9rem; }
.table { overflow-x: auto; background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .4rem .65rem; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--dim); font-weight: 600; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.command { user-select: all; overflow-wrap: anywhere; min-width: 14rem; }
td.payload { overflow-wrap: anywhere; min-width: 16rem; }
td.name, td.id, td.command, td.payload { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
td.name { overflow-wrap: anywhere; min-width: 7rem; }
td.id { white-space: pre; }
.more { font-size: .85rem; }
/* Where a table does not fit, each row is a list of its titles and cells. */
@media (max-width: 44rem) {
  body { padding: 1rem .8rem 3rem; }
  .cards { grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .5rem; }
  .card { padding: .5rem .7rem; }
  figure { padding: .7rem; }
  .bars { grid-template-columns: 1fr max-content; gap: .1rem .6rem; }
  .bars > :nth-child(3n+1) { grid-column: 1 / -1; max-width: none; white-space: normal; overflow-wrap: anywhere; }
  thead { display: none; }
  tr { display: block; padding: .5rem .7rem; border-top: 1px solid var(--line); }
  tbody tr:first-child { border-top: 0; }
  td { display: grid; grid-template-columns: 7.5rem minmax(0, 1fr); gap: .6rem; border: 0; padding: .12rem 0; }
  td.number { text-align: left; white-space: normal; }
  td.name, td.command, td.payload { min-width: 0; }
  td.id { white-space: pre-wrap; overflow-wrap: anywhere; }
  td::before { content: attr(data-title); color: var(--dim); font-family: system-ui, sans-serif; }
}
</style>
</head>
<body>
<h1>$title</h1>
<dl class="facts">
$facts
</dl>
<div class="cards">
$cards
</div>
$sections
</body>
</html>
""")
