from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

from riverbed.server.start.last_words import kept_last_words
from riverbed.store.layout import LAST_WORDS_NAME


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that a fatal error would write to, one after the other."""
    descriptors: list[int] = []
    monkeypatch.setattr(faulthandler, "enable", lambda fd, all_threads=True: descriptors.append(fd))
    return descriptors


def test_words_are_logged_once_and_a_server_that_ends_well_leaves_none(
    tmp_path: Path, told: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    words = tmp_path / LAST_WORDS_NAME
    with kept_last_words(tmp_path):
        os.write(told[0], b"Fatal Python error: Bus error\n\nCurrent thread\n")
    with kept_last_words(tmp_path):
        assert words.read_bytes() == b""
    assert told[1] == told[3] == 2, "what comes behind its end goes to standard error"
    with kept_last_words(tmp_path):
        pass
    [line] = caplog.messages
    assert line.endswith("looked through: Fatal Python error: Bus error Current thread")


def test_where_no_word_can_be_kept_standard_error_has_it(
    tmp_path: Path, told: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A link is not followed, whatever it leads to."""
    target = tmp_path / "elsewhere"
    target.write_bytes(b"of another")
    (tmp_path / LAST_WORDS_NAME).symlink_to(target)
    with kept_last_words(tmp_path):
        pass
    assert target.read_bytes() == b"of another"
    assert told == []
    assert "would leave no word for the next start" in caplog.text
