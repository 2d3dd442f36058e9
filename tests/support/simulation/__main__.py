"""The command line of the simulation."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.support.simulation.run import Outcome, run_seed

_MAX_SHOWN = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--until-found", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--history", type=Path, help="write what happened to this file")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    failed = 0
    begun = time.monotonic()
    operations, faults = 0, {}
    for seed in seeds:
        outcome = run_seed(seed)
        operations += outcome.history.operations
        for kind, count in outcome.history.faults.items():
            faults[kind] = faults.get(kind, 0) + count
        if asked.history:
            outcome.history.write(asked.history)
        if outcome.violations:
            failed += 1
            _show(outcome)
            if asked.until_found:
                break
    seconds = time.monotonic() - begun
    count = sum(faults.values())
    _say(f"{len(seeds)} seeds, {operations} commands, {count} faults in {seconds:.1f} s: {failed} failed")
    _say(", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
    return 1 if failed else 0


def _show(outcome: Outcome) -> None:
    _say(f"seed {outcome.seed}: {len(outcome.violations)} violations")
    for line in outcome.violations[:_MAX_SHOWN]:
        _say(f"  {line}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set must not depend on the process
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
