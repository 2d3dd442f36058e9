"""What the repository says of itself is so: names of files in texts, and folders of tests as those of the code."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.support.servers import ROOT

CODE = ("server", "store", "tools")
# Folders of tests that are not those of a folder of the code.
OTHER_TESTS = {"fixtures", "support", "system"}
# Tested where they are used: by `riverbed load` and `riverbed import`.
TESTED_ELSEWHERE = {"tools/loading"}
# Also without backticks, as in drawings.
NAME = re.compile(r"(?<![\w./<>*-])((?:[\w-]+/)*[a-z_][a-z0-9_]*\.py)\b(?!\.)")
EXAMPLES = {"job.py"}


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def ends(path: PurePosixPath) -> Iterator[str]:
    """`/reader.py`, `/log/reader.py` and `/store/log/reader.py` of a path."""
    yield from ("/" + "/".join(path.parts[-count:]) for count in range(1, len(path.parts) + 1))


EVERYTHING = sources(*CODE, "benchmarks", "src", "tests")
MODULE_ENDS = {end for path in EVERYTHING for end in ends(PurePosixPath(path.relative_to(ROOT).as_posix()))}


def texts(path: Path) -> Iterator[str]:
    """The docstrings and comments of a module, when a file is named anywhere in it."""
    source = path.read_text()
    if ".py" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""
    yield from (
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )


def missing(text: str) -> list[str]:
    """The modules that a text names, with or without the folders above them, and that are not there."""
    return [name for name in NAME.findall(text) if name not in EXAMPLES and f"/{name}" not in MODULE_ENDS]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`engine.py` and `log/reader.py` and store/log/reader.py", []),
        ("see `logreader.py`.", ["logreader.py"]),
        ("logreader.py    what it is", ["logreader.py"]),
        ("`log/logreader.py`", ["log/logreader.py"]),
    ],
)
def test_a_file_that_is_not_there_is_found_in_a_text(text: str, found: list[str]) -> None:
    assert missing(text) == found


def test_the_files_that_docstrings_and_comments_name_are_there() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}" for path in EVERYTHING for text in texts(path) for name in missing(text)
    ]
    assert wrong == []


def test_the_files_that_the_documents_name_are_there() -> None:
    documents = [*ROOT.glob("*.md")]
    documents += [path for folder in (*CODE, "benchmarks", "docs", "tests") for path in (ROOT / folder).rglob("*.md")]
    assert ROOT / "store" / "FORMAT.md" in documents
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in documents for name in missing(path.read_text())]
    assert wrong == []


def code_folders() -> set[str]:
    """The folders of the code that have a module beside `__init__`."""
    modules = [path for path in sources(*CODE) if path.name != "__init__.py"]
    return {path.parent.relative_to(ROOT).as_posix() for path in modules}


# A group that is repeated possessively, or is atomic.
POSSESSIVE = re.compile(r"""^[^#]*\brb?["'].*(?:[)][*+?]\+|[)]\{[\d,]+\}\+|\(\?>)""", re.MULTILINE)
# Where the repetition of these ends, each branch of the group fails at its first byte, and so takes none.
SOUND = {"text.py"}


def test_no_group_of_an_expression_is_repeated_possessively() -> None:
    """CPython before 3.11.5, as of Debian 12, keeps what the last, failed repetition has taken (gh-106052).

    A single character or a set is no group.
    """
    assert POSSESSIVE.search('x = re.compile(rb"(?:a|b)++")')
    assert POSSESSIVE.search("x = re.compile(r'(?>a|b)')")
    assert not POSSESSIVE.search('x = re.compile(rb"([0-9]++)([a-z]*+)+")')
    assert {path.name for path in sources(*CODE) if POSSESSIVE.search(path.read_text())} == SOUND


# Each says no where the system cannot tell: on every Python, or from 3.14 on.
SURE_OF_WHAT_IT_CANNOT_SEE = re.compile(
    r"\bos\.path\.(?:l?exists|is(?:dir|file|link|mount))\("
    r"|(?<!files)\.exists\(|\.is_(?:dir|file|symlink|fifo|socket|block_device|char_device|mount)\(\)"
)


def test_the_store_takes_no_file_that_it_cannot_look_at_for_missing() -> None:
    """`is_there` of `store/disk/real_files.py` and `Files.exists` raise the error in its place."""
    for wrong in ("os.path.lexists(path)", "(path / NAME).exists()", "path.exists()", "path.is_dir()"):
        assert SURE_OF_WHAT_IT_CANNOT_SEE.search(wrong)
    assert not SURE_OF_WHAT_IT_CANNOT_SEE.search("self._files.exists(path) or files.exists(path)")
    assert [path for path in sources("store") if SURE_OF_WHAT_IT_CANNOT_SEE.search(path.read_text())] == []


def test_the_redis_made_of_its_source_has_every_program_that_is_run() -> None:
    made = re.search(r"^for program in (.*); do$", (ROOT / ".ci" / "install-redis").read_text(), re.MULTILINE)
    assert made is not None
    run = {name for path in EVERYTHING for name in re.findall(r'which\("(redis-[\w-]+)"\)', path.read_text())}
    assert "redis-server" in run
    assert run <= set(made[1].split())


def test_folders_of_tests_are_folders_of_the_code() -> None:
    tests = {path.parent.relative_to(ROOT / "tests").as_posix() for path in sources("tests")} - {"."}
    strange = {folder for folder in tests - code_folders() if folder.partition("/")[0] not in OTHER_TESTS}
    assert strange == set(), "a folder of tests/ has no folder of the code beside it: move the tests"


def test_every_folder_of_the_code_has_a_folder_of_tests() -> None:
    tested = {path.parent.relative_to(ROOT / "tests").as_posix() for path in sources("tests") if "test_" in path.name}
    assert code_folders() - tested == TESTED_ELSEWHERE, "a folder of the code has no folder in tests/"


def test_every_folder_of_helpers_says_what_it_is_for() -> None:
    told = (ROOT / "tests" / "README.md").read_text()
    folders = {path.parent.relative_to(ROOT).as_posix() for path in sources("tests/support", "tests/system")}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in told] == []
