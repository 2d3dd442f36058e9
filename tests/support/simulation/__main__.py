"""The command line of the simulation.

A seed that fails is printed with the smallest part of it that was found to fail as well, and what replays that part.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.support.simulation.plan import make_plan
from tests.support.simulation.run import Outcome, run_seed
from tests.support.simulation.shrink import Part, Trials, kinds_of, shrink

_MAX_SHOWN = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--until-found", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--part", type=Part.read, help="of a seed, as a run that failed has printed it")
    parser.add_argument("--shrink-s", type=float, default=120.0, help="how long to look for a part that fails as well")
    parser.add_argument("--history", type=Path, help="write what happened to this file")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds) if asked.seed is None else [asked.seed]
    failed = 0
    begun = time.monotonic()
    operations, faults = 0, {}
    for seed in seeds:
        outcome = run_seed(seed, None if asked.part is None else asked.part.plan(make_plan(seed)))
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
            if asked.part is None:
                _shrink(outcome, asked.shrink_s)
    seconds = time.monotonic() - begun
    count = sum(faults.values())
    _say(f"{len(seeds)} seeds, {operations} commands, {count} faults in {seconds:.1f} s: {failed} failed")
    _say(", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
    return 1 if failed else 0


def _show(outcome: Outcome) -> None:
    _say(f"seed {outcome.seed}: {len(outcome.violations)} violations")
    for line in outcome.violations[:_MAX_SHOWN]:
        _say(f"  {line}")


def _shrink(outcome: Outcome, most_s: float) -> None:
    trials = Trials(outcome.seed, kinds_of(outcome.violations), most_s)
    part = shrink(Part.all_of(outcome.plan), trials.fails)
    plan = part.plan(outcome.plan)
    _say(f"  shrunk in {trials.count} trials to {len(plan.events)} of {len(outcome.plan.events)} faults:")
    for event in plan.events:
        _say(f"    {event.at_s:.3f} {event.machine}: {event.kind} {event.shown}")
    _say(f"  python -m tests.support.simulation --seed {outcome.seed} --part {part}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set must not depend on the process
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
