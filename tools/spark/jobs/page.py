"""A report as Markdown and as one file of HTML: facts, figures, tables, charts.

All text comes from outside, keys of clients among it, so both forms escape everything they are given.  The page needs
nothing but itself: its style is in it, and so are its charts, as pictures, in which nothing can run.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Should something get through after all, it may run nothing and fetch nothing.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# What Markdown, and the HTML in it, would take for its own.
_MARKDOWN: Final = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|~&$"})


@dataclass(frozen=True, slots=True)
class Column:
    """`is_number` is set right, `is_name` in letters of one width, `is_id` as well and never broken."""

    title: str
    is_number: bool = False
    is_name: bool = False
    is_id: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`more` stands below: what was left out."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str]]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, and what it shows in words."""

    title: str
    svg: bytes


@dataclass(frozen=True, slots=True)
class Card:
    """A figure to be seen first.  `is_bad`: somebody should do something about it."""

    title: str
    value: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """`text` is above tables and charts."""

    title: str
    text: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    cards: Sequence[Card] = ()
    sections: Sequence[Section] = ()


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(page: Page) -> str:
    """Without charts."""
    return "\n".join(_markdown_lines(page))


def _markdown_lines(page: Page) -> Iterator[str]:
    yield from (f"# {_plain(page.title)}", "")
    for name, value in page.facts:
        yield f"- {_plain(name)}: {_plain(value)}"
    if page.cards:
        yield from ("", "| | |", "|---|--:|")
        for card in page.cards:
            value = _plain(card.value)
            yield f"| {_plain(card.title)} | {f'**{value}**' if card.is_bad else value} |"
    for section in page.sections:
        yield from ("", f"## {_plain(section.title)}")
        if section.text:
            yield from ("", _plain(section.text))
        for table in section.tables:
            yield ""
            yield from _markdown_table(table)
    yield ""


def _markdown_table(table: Table) -> Iterator[str]:
    if table.rows:
        yield f"| {' | '.join(_plain(column.title) for column in table.columns)} |"
        yield f"|{'|'.join('--:' if column.is_number else '---' for column in table.columns)}|"
        for row in table.rows:
            yield f"| {' | '.join(_plain(cell) for cell in row)} |"
    if table.more:
        yield from ("", _plain(table.more))


def _plain(text: str) -> str:
    """One line that shows what it says."""
    return " ".join(text.split("\n")).translate(_MARKDOWN)


# -- HTML --------------------------------------------------------------------------------------------------------------


def html_page(page: Page) -> str:
    """The whole of a file."""
    return "\n".join(_html_lines(page))


def _html_lines(page: Page) -> Iterator[str]:
    title = html.escape(page.title)
    yield from ("<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">')
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield from (f"<title>{title}</title>", f"<style>{_STYLE}</style>", "</head>", "<body>", f"<h1>{title}</h1>")
    if page.facts:
        yield '<dl class="facts">'
        for name, value in page.facts:
            yield f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        yield "</dl>"
    if page.cards:
        yield '<div class="cards">'
        for card in page.cards:
            kind = "card bad" if card.is_bad else "card"
            yield f'<div class="{kind}"><b>{html.escape(card.value)}</b><span>{html.escape(card.title)}</span></div>'
        yield "</div>"
    for section in page.sections:
        yield from _html_section(section)
    yield from ("</body>", "</html>", "")


def _html_section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{html.escape(section.title)}</h2>"
    if section.text:
        yield f"<p>{html.escape(section.text)}</p>"
    if section.charts:
        yield '<div class="charts">'
        for chart in section.charts:
            data = base64.b64encode(chart.svg).decode()
            name = html.escape(chart.title)
            yield f'<figure><figcaption>{name}</figcaption><img alt="{name}" src="data:image/svg+xml;base64,{data}">'
            yield "</figure>"
        yield "</div>"
    for table in section.tables:
        yield from _html_table(table)
    yield "</section>"


def _html_table(table: Table) -> Iterator[str]:
    if table.rows:
        kinds = [_kind(column) for column in table.columns]
        yield '<div class="table"><table><thead><tr>'
        for column, kind in zip(table.columns, kinds, strict=True):
            yield f"<th{kind}>{html.escape(column.title)}</th>"
        yield "</tr></thead><tbody>"
        for row in table.rows:
            cells = (f"<td{kind}>{html.escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
            yield f"<tr>{''.join(cells)}</tr>"
        yield "</tbody></table></div>"
    if table.more:
        yield f'<p class="more">{html.escape(table.more)}</p>'


def _kind(column: Column) -> str:
    if column.is_number:
        return ' class="number"'
    if column.is_id:
        return ' class="id"'
    return ' class="name"' if column.is_name else ""


_STYLE: Final = """
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
.card.bad { background: var(--badback); border-color: var(--bad); }
.card.bad b { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem;
  margin: .6rem 0 1rem; align-items: start; }
figure { margin: 0; max-width: 44rem; background: #fff; color: #1c2733; border: 1px solid var(--line);
  border-radius: 8px; padding: .8rem 1rem; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .4rem; }
img { width: 100%; height: auto; display: block; }
.table { overflow-x: auto; background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .4rem .65rem; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--dim); font-weight: 600; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.name, td.id { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
td.name { overflow-wrap: anywhere; min-width: 7rem; }
td.id { white-space: nowrap; }
.more { font-size: .85rem; }
"""
