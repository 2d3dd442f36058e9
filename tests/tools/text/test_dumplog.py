from __future__ import annotations

import pytest

from riverbed.tools.text.dumplog import word_text


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (b"plain", "plain"),
        (b"a-b_c:1", "a-b_c:1"),
        (b"", '""'),
        (b"two words", '"two words"'),
        (b'q"q', '"q\\"q"'),
        (b"#x", '"#x"'),
        (b"\xff\n", '"\\xff\\n"'),
    ],
)
def test_words_stand_as_redis_cli_takes_them(word: bytes, text: str) -> None:
    assert word_text(word) == text
