"""A failing seed of the simulation is made small: to the faults without which it does not fail."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.servers import ROOT
from tests.support.simulation.plan import Event, Plan, make_plan
from tests.support.simulation.shrink import Part, Trials, fewest, kinds_of, shrink

pytestmark = pytest.mark.once  # the servers are there to fail

EVENTS = tuple(range(40))


@pytest.mark.parametrize("needed", [(), (0,), (39,), (3, 4), (0, 17, 39), EVENTS[10:20]])
def test_the_faults_that_it_takes_are_left(needed: tuple[int, ...]) -> None:
    trials: list[tuple[int, ...]] = []

    def fails(events: tuple[int, ...]) -> bool:
        trials.append(events)
        return set(needed) <= set(events)

    assert fewest(EVENTS, fails) == needed
    assert len(trials) < 150


def test_faults_of_which_one_of_two_is_enough_leave_one() -> None:
    assert len(fewest(EVENTS, lambda events: 3 in events or 30 in events)) == 1


def test_clients_machines_and_time_are_left_out() -> None:
    whole = Part(EVENTS, 6, 3, 8.0)

    def fails(part: Part) -> bool:
        return 7 in part.events and part.clients >= 2 and part.machines >= 2 and part.seconds >= 5.0

    part = shrink(whole, fails)
    assert part == Part((7,), 2, 2, 6.0)
    assert Part.read(str(part)) == part
    assert Part.read(str(replace(part, events=()))).events == ()


def test_a_part_has_no_faults_of_machines_that_are_not_there() -> None:
    events = [
        Event(1.0, "kill", "a"),
        Event(2.0, "kill", "c"),
        Event(3.0, "partition", "a", other="b", seconds=1.0),
        Event(4.0, "partition", "a", other="sentinel", seconds=1.0),
        Event(5.0, "command", "a", other="BGREWRITEAOF", seconds=5.0),
    ]
    plan = Plan(1, 8.0, 6, ["a", "b", "c"], [], events)
    assert Part.all_of(plan).plan(plan) == plan
    alone = Part((0, 1, 2, 3, 4), 2, 1, 6.0).plan(plan)
    assert alone.events == [events[0], events[3], events[4]]
    assert (alone.machines, alone.clients, alone.seconds) == (["a"], 2, 6.0)


def test_violations_of_one_kind_differ_in_names_and_numbers() -> None:
    first = "b's1': b'producer0:17' was acknowledged at (1700000000000, 3), and is lost"
    other = "b's0': b'producer1:4' was acknowledged at (1700000004711, 0), and is lost"
    assert kinds_of([first]) == kinds_of([other])
    assert kinds_of([first]) != kinds_of(["b's1': b'producer0:17' at (1700000000000, 3) was refused, and is there"])
    assert kinds_of(["a stops at 17, and its replica b is at 3"]) == kinds_of(
        ["c stops at 5, and its replica a is at 4"]
    )


def test_no_part_fails_when_the_time_is_over() -> None:
    assert not Trials(7, {"anything"}, most_s=-1.0).fails(Part((), 1, 1, 1.0))


def test_a_part_is_run_and_its_seed_says_how_to_run_it(tmp_path: Path) -> None:
    """A judge that takes each power cut for a defect stands for one that has found something."""
    plan = make_plan(11)
    cuts = [number for number, event in enumerate(plan.events) if event.kind == "power cut"]
    assert 0 < len(cuts) < len(plan.events)
    judge = tmp_path / "sitecustomize.py"
    judge.write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tests.support.simulation.__main__' or name == 'tests.support.simulation.shrink':\n"
        "            sys.meta_path.remove(self)\n"
        "            import tests.support.simulation.run as run\n"
        "            sound = run.judge\n"
        "            def judge(records, final):\n"
        "                yield from sound(records, final)\n"
        "                if WORLDS and WORLDS[-1].history.faults.get('power cut'):\n"
        "                    yield 'the power was cut'\n"
        "            WORLDS = []\n"
        "            make = run.World.__init__\n"
        "            def init(self, *words):\n"
        "                make(self, *words)\n"
        "                WORLDS.append(self)\n"
        "            run.World.__init__, run.judge = init, judge\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "src")))}
    command = [sys.executable, "-m", "tests.support.simulation", "--seed", "11", "--shrink-s", "3600"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "  the power was cut"
    (replay,) = [line.split() for line in lines if "--part" in line]
    part = Part.read(replay[-1])
    assert len(part.events) == 1 and set(part.events) <= set(cuts)
    assert (part.clients, part.machines) == (0, 1)
    again = subprocess.run(
        [sys.executable, *replay[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1 and "  the power was cut" in again.stdout.splitlines()
