from __future__ import annotations

import io
import sys

import pytest

from riverbed.tools.console import outputs
from riverbed.tools.console.outputs import FAILED, INTERRUPTED, UNREAD


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), INTERRUPTED), (BrokenPipeError(), UNREAD), (OSError(28, "full"), FAILED)],
)
def test_an_output_that_cannot_be_written_ends_a_command_without_a_traceback(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with pytest.raises(SystemExit) as ended, outputs.guarded():
        raise error
    assert ended.value.code == status
    told = "riverbed: cannot write to standard output: full\n" if status == FAILED else ""
    assert capsys.readouterr().err == told


def test_letters_that_an_output_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with outputs.guarded():
        sys.stdout.write("caf\u00e9 \udcff")
        sys.stdout.flush()
    assert written.getvalue() == b"caf\\xe9 \\udcff"
