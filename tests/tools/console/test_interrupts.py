from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.tools.console.interrupts import interrupts_between_steps
from tests.support.servers import ROOT

# The second signal comes while the directory is deleted.
HALF_MADE = """
import os, shutil, signal, sys
from pathlib import Path
from riverbed.tools.console.interrupts import interrupt_at_termination
from riverbed.tools.console.outputs import guarded
from riverbed.tools.offline.newdirectory import new_directory

number = int(sys.argv[2])
delete = shutil.rmtree

def interrupted(*words, **options):
    os.kill(os.getpid(), number)
    delete(*words, **options)

shutil.rmtree = interrupted
interrupt_at_termination()
with guarded(), new_directory(Path(sys.argv[1])) as partial:
    (partial / "file").touch()
    os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_leaves_nothing_that_is_half_made(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-c", HALF_MADE, str(tmp_path / "new"), str(int(number))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_steps_takes_effect_between_two(number: signal.Signals) -> None:
    former = signal.getsignal(number)

    def work() -> None:
        with interrupts_between_steps() as go_on:
            go_on()
            os.kill(os.getpid(), number)
            go_on()

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert caught.value.args == (number,)
    assert signal.getsignal(number) is former
