"""No bytes from outside crash, hang or bloat the process that reads them, and each reader says what is wrong.

Every input that was found once, or is a good beginning, is a file in `tests/corpora/`, and is read again in each run;
then come some that are made of these.  `RIVERBED_SEED=n` makes others, `python -m tests.support.fuzzing.worker TARGET
--count N --keep tests/corpora/TARGET` as many as there is time for.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import base_seed
from tests.support.fuzzing.targets import TARGETS
from tests.support.fuzzing.worker import CORPORA
from tests.support.servers import ROOT

COUNTS = {"requests": 2000, "manifest": 2000, "configuration": 1000, "commands": 150, "log": 150, "pages": 150}
OTHERS = 400
MAX_CORPUS_BYTES = 1 << 20


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_that_is_read_ends_its_reader(target: str, tmp_path: Path) -> None:
    current = tmp_path / "current"
    module = [sys.executable, "-m", "tests.support.fuzzing.worker", target, "--current", str(current)]
    count = ["--count", str(COUNTS.get(target, OTHERS)), "--seed", str(base_seed())]
    done = subprocess.run([*module, *count], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}\nstatus {done.returncode}, the input is {current}: "
        f"{signal.strsignal(-done.returncode) if done.returncode < 0 else 'see above'}"
    )


def test_the_corpus_is_small_and_complete() -> None:
    assert sorted(path.name for path in CORPORA.iterdir()) == sorted(TARGETS)
    assert sum(path.stat().st_size for path in CORPORA.rglob("*")) < MAX_CORPUS_BYTES


def test_a_find_ends_the_worker_with_an_error(tmp_path: Path) -> None:
    """A target that takes the bytes for a number."""
    script = (
        "import sys, tests.support.fuzzing.targets as targets; targets.TARGETS['load'] = lambda place: int\n"
        "import tests.support.fuzzing.worker as worker\n"
        f"sys.argv = ['worker', 'load', '--keep', {str(tmp_path)!r}]\n"
        "sys.exit(worker.main())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ValueError" in done.stdout, done.stderr
    assert len(list(tmp_path.iterdir())) == 1
