from __future__ import annotations

import re

from riverbed.tools.spark.jobs.page import Column, Page, Section, Table, html_page


def test_each_cell_has_the_title_of_its_column_for_narrow_screens_where_no_head_is_shown() -> None:
    columns = [Column("stream", lambda row: row["key"], "name"), Column('a "b" <c>', lambda row: str(row["count"]))]
    rows = [{"key": "orders", "count": 1}, {"key": '"><script>', "count": 2}]
    page = html_page(Page("title", {}, [], [Section("all", table=Table(columns, rows))]))

    titles = re.findall(r"<th [^>]*>([^<]*)</th>", page)
    cells = re.findall(r'<td class="[a-z]+" data-title="([^"]*)">([^<]*)</td>', page)
    assert titles == ["stream", "a &quot;b&quot; &lt;c&gt;"]
    assert cells == [(titles[0], "orders"), (titles[1], "1"), (titles[0], "&quot;&gt;&lt;script&gt;"), (titles[1], "2")]
