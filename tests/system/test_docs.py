"""README and `docs/` are true: their commands run, print what the page shows, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import NO_TEST, RUN, SHOWN, Block, Page, blocks_of, prints
from tests.support.servers import ROOT

pytestmark = pytest.mark.once  # what is looked at is the pages

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, ROOT / "SECURITY.md", ROOT / "store" / "FORMAT.md", *sorted(ROOT.glob("[!.]*/README.md"))]
MAX_NOT_RUN = 6


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_commands_of_a_page_run_and_print_what_it_shows(
    path: Path, tmp_path: Path, java_options: str, spark_python: Path
) -> None:
    blocks = blocks_of(path.read_text())
    with Page(name_of(path), tmp_path / "page", java_options, spark_python) as page:
        page.run(blocks)


@pytest.mark.parametrize("path", LINKING, ids=name_of)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if not found.exists() or (heading and heading not in headings_of(found)):
            broken.append(target)
    assert broken == []


def headings_of(path: Path) -> set[str]:
    """Of a page, as GitHub names them in links."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", LINKING, ids=name_of)
def test_files_that_a_page_names_exist(path: Path) -> None:
    named = re.findall(r"\b((?:store|server|tools|tests|benchmarks|docs)/[\w/.-]+\.(?:py|md))\b", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_of_a_page_says_what_it_is(path: Path) -> None:
    for block in blocks_of(path.read_text()):
        assert block.language in RUN + SHOWN, f"line {block.line}: {block.language!r}"
        assert not block.note or len(block.note) > len(NO_TEST), f"line {block.line}: no reason"


def test_few_blocks_are_not_run() -> None:
    left_out = [block for path in PAGES for block in blocks_of(path.read_text()) if block.note.startswith(NO_TEST)]
    assert len(left_out) <= MAX_NOT_RUN, left_out


# -- the runner itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "is_equal"),
    [
        ('"1795257000123-0"', '"1799999999999-12"\n', True),
        ('"1795257000123-0"', '"5-1"\n', False),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\n...\nz", "a\nb\nc", False),
        ("(integer) 1", "(integer) 11", False),
    ],
)
def test_an_output_is_compared_but_for_ids_and_dots(shown: str, printed: str, *, is_equal: bool) -> None:
    assert prints(shown, printed) is is_equal


@pytest.mark.parametrize(
    "block",
    [
        Block(1, "sh", "", "false\ntrue\n"),
        Block(1, "console", "", "$ echo one\ntwo\n"),
        Block(1, "console", "", "127.0.0.1:6379> XLEN s\n(integer) 1\n"),
        Block(1, "python", "", "raise SystemExit\n"),
    ],
    ids=lambda block: block.language,
)
def test_a_block_that_is_not_true_fails(block: Block, tmp_path: Path) -> None:
    with Page("page", tmp_path / "page") as page, pytest.raises(AssertionError, match="page:1"):
        page.run([block])
