"""Planted bugs: whether the simulation, the loops and the tests find what they exist to find.

    python -m tests.support.mutants                     all of them; exit status 1 when one was not found
    python -m tests.support.mutants --only torn-tail    one, by name
    python -m tests.support.mutants --part 3/15         the third of fifteen parts
    python -m tests.support.mutants --check             only whether all patches still apply

Each bug is a patch in `tests/mutants/<area>/`.  Its first lines say what the bug is and what is to find it, in order:

    Bug: replies go out before the log is durable
    Finder: simulation from 1
    Finder: tests/system/test_crash.py -k power

A patch is applied to a copy of the sources, never to the sources.  The simulation stops at the first seed that fails;
a file of tests, at the first test.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests" / "mutants"
SECONDS = 300.0  # a test that waits for what never comes gives up after 120
_COPIED = ("store", "server", "tools", "tests", "src", "docs", "benchmarks", "pyproject.toml", "setup.py", "README.md")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "build", ".hypothesis")
_SEEDS = 100_000


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    path: Path
    bug: str
    finders: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Raises ValueError when the first lines do not say what the bug is, and what is to find it."""
        head = path.read_text().partition("\n--- ")[0].splitlines()
        told = [line.partition(": ") for line in head]
        bugs = [text for word, _, text in told if word == "Bug"]
        finders = tuple(text for word, _, text in told if word == "Finder")
        if len(bugs) != 1 or not finders:
            raise ValueError(f"{path}: begin it with a line `Bug: ...` and lines `Finder: ...`")
        return cls(path, bugs[0], finders)

    def missing_finders(self) -> list[str]:
        """The finders that there are no more."""
        names = [finder.split()[0] for finder in self.finders]
        paths = {name: ROOT / (name if "/" in name else f"{name.replace('.', '/')}.py") for name in names}
        return [name for name in names if name != "simulation" and not paths[name].exists()]

    def misfit(self, root: Path = ROOT) -> str:
        """Why the patch does not apply to the sources in `root`; empty when it does."""
        return _patched(self.path, root, "--check")


@dataclass(frozen=True)
class Finding:
    """What became of one planted bug: by what it was found and what that said, or `by` is empty."""

    mutant: Mutant
    by: str = ""
    seconds: float = 0.0
    said: str = ""

    @property
    def row(self) -> str:
        by = self.by or "NOT FOUND"
        return f"| {self.mutant.name} | {self.mutant.bug} | {by} | {self.seconds:.0f} |"


def mutants() -> list[Mutant]:
    return [Mutant.read(path) for path in sorted(PATCHES.rglob("*.patch"))]


def part_of(all_: list[Mutant], number: int, count: int) -> list[Mutant]:
    """The part `number`, from 1 on, of `count`; neighbours are of one area, so they come into different parts."""
    return all_[(number - 1) % count :: count]


def find(mutant: Mutant, seconds: float) -> Finding:
    """Apply the patch to a copy, and let its finders search; each has at most `seconds`."""
    begun = time.monotonic()
    with _copy() as copy:
        reason = _patched(mutant.path, copy)
        if reason:
            return Finding(mutant, said=f"the patch does not apply: {reason}")
        for finder in mutant.finders:
            said = _search(finder, copy, seconds)
            if said:
                by = f"simulation, {said.partition(':')[0]}" if finder.startswith("simulation") else finder
                return Finding(mutant, by, time.monotonic() - begun, said)
    return Finding(mutant, seconds=time.monotonic() - begun)


@contextlib.contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the sources, with the native module as it is built here."""
    folder = Path(tempfile.mkdtemp(prefix="riverbed-mutant-"))
    try:
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=_LEFT_OUT)
            else:
                shutil.copy2(source, folder / name)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _patched(patch: Path, root: Path, *options: str) -> str:
    """Apply a patch; -> what git says when it cannot."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    command = ["git", "apply", "-p1", *options, str(patch)]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"git ended with {done.returncode}"


def _search(finder: str, copy: Path, seconds: float) -> str:
    """Run one finder on the patched copy; -> what it found, empty for nothing in its time."""
    kind, *words = finder.split()
    if kind == "simulation":
        first = words[words.index("from") + 1] if "from" in words else "1"
        options = ["tests.support.simulation", "--seeds", str(_SEEDS), "--from", first, "--until-found"]
        return _simulated(_run(copy, ["-m", *options], seconds)[1])
    if kind.startswith("tests/"):
        options = ["pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", kind, *words]
        status, output = _run(copy, ["-m", *options], seconds)
        # 1: a test failed; None: one hangs, which a test of its own would not; all else is an error of the run itself
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0] if status == 1 and failed else ""
    status, output = _run(copy, ["-m", kind, *words], seconds)
    return (output.splitlines() or ["status 1"])[-1] if status == 1 and "\nTraceback" not in f"\n{output}" else ""


def _simulated(output: str) -> str:
    """The first violation of the failing seed."""
    lines = output.splitlines()
    for line, after in pairwise(lines):
        if line.startswith("seed ") and line.endswith("violations"):
            return f"{line.partition(':')[0]}: {after.strip()}"
    return ""


def _run(copy: Path, words: list[str], seconds: float) -> tuple[int | None, str]:
    """Run Python in the copy; -> its status, None when its time was over, and what it has said."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONHASHSEED": "0"}
    environment.pop("RIVERBED_FORM", None)  # the copy is never compiled
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # servers that a failed test has left
        process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="the name of a planted bug, or a part of it")
    parser.add_argument("--part", default="1/1", help="i/n: the i-th of n parts")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each finder may search")
    parser.add_argument("--check", action="store_true", help="only whether the patches apply")
    asked = parser.parse_args()
    number, _, count = asked.part.partition("/")
    chosen = part_of(mutants(), int(number), int(count))
    if asked.only:
        chosen = [mutant for mutant in chosen if any(word in mutant.name for word in asked.only)]
    if asked.check:
        misfits = [f"{mutant.name}: {reason}" for mutant in chosen if (reason := mutant.misfit())]
        _say(*misfits, f"{len(chosen)} patches, {len(misfits)} do not apply")
        return 1 if misfits else 0
    _say("| planted bug | what it does | found by | seconds |", "|---|---|---|---|")
    missed = 0
    for mutant in chosen:
        finding = find(mutant, asked.seconds)
        missed += not finding.by
        _say(finding.row)
        if finding.said:
            sys.stderr.write(f"  {finding.said}\n")
    _say("", f"{len(chosen)} planted bugs, {missed} not found")
    return 1 if missed or not chosen else 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
