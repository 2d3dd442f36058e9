"""The commands of the open tick: their lines, what has changed without one, and the objects that are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from riverbed.store.format.resp import encode_command
from riverbed.store.tables.writing.commands import LoggedCommands

SELECT_0, SELECT_3 = (encode_command([b"SELECT", number]) for number in (b"0", b"3"))
XADD = [b"XADD", b"s", b"1-1", b"f", b"v"]


class Rest:
    """An object that logs this command when the open command ends."""

    def __init__(self, commands: LoggedCommands, word: bytes) -> None:
        self._commands = commands
        self._word = word

    def log_rest(self) -> None:
        self._commands.log_command(0, [self._word])


class Observer:
    """Keeps the lines that it is shown."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.is_lost = False

    def logged(self, log: list[bytes]) -> None:
        self.seen += log

    def record_dropped(self, records_no: int) -> None:
        raise AssertionError("no record is dropped here")

    def lost(self) -> None:
        self.is_lost = True


@pytest.fixture
def commands() -> LoggedCommands:
    return LoggedCommands()


def test_the_database_is_selected_before_the_first_command_that_needs_it(commands: LoggedCommands) -> None:
    for number in (0, 0, 3, 0):
        commands.log_command(number, XADD)
    line = encode_command(XADD)
    assert commands.log == [SELECT_0, line, line, SELECT_3, line, SELECT_0, line]


def test_only_extensions_count_as_bytes_that_no_offset_has(commands: LoggedCommands) -> None:
    commands.log_extension(0, [b"XCFGSET", b"s"])
    commands.log_command(0, XADD)
    assert commands.log[0] == SELECT_0
    assert commands.log[1].startswith(b"#RB:")
    assert commands.extension_bytes == len(commands.log[1])
    commands.drop_log()
    assert (commands.log, commands.extension_bytes) == ([], 0)


CHANGES: dict[str, Callable[[LoggedCommands], None]] = {
    "a line": lambda commands: commands.log_command(0, XADD),
    "a change before its line": LoggedCommands.change_begins,
    "a rest that is logged later": lambda commands: commands.log_later(Rest(commands, b"XCONFIG")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_command_that_changes_something_is_told_from_one_that_does_not(
    commands: LoggedCommands, change: Callable[[LoggedCommands], None]
) -> None:
    commands.log_command(0, XADD)  # an earlier command of the tick
    mark = commands.mark()
    assert commands.is_unchanged_since(mark)
    change(commands)
    assert not commands.is_unchanged_since(mark)
    commands.forget_logged()
    assert commands.log == []
    assert commands.is_unchanged_since(commands.mark())


def test_a_change_of_an_earlier_command_is_none_of_a_later_one(commands: LoggedCommands) -> None:
    commands.change_begins()
    commands.log_command(0, XADD)
    assert commands.is_unchanged_since(commands.mark())


def test_the_rest_of_an_object_stands_before_that_of_the_next_one_and_once(commands: LoggedCommands) -> None:
    first, second = Rest(commands, b"FIRST"), Rest(commands, b"SECOND")
    for changed in (first, first, second):
        commands.log_later(changed)
    commands.log_command(0, XADD)
    commands.end_command()
    commands.end_command()
    words = ([b"FIRST"], XADD, [b"SECOND"])
    assert commands.log == [SELECT_0, *map(encode_command, words)]


def test_observers_see_the_lines_of_each_tick_until_they_are_lost(commands: LoggedCommands) -> None:
    observer = Observer()
    commands.observers.append(observer)
    for key in (b"a", b"b"):
        commands.log_command(0, [b"DEL", key])
        commands.log_is_written()
    assert observer.seen == [SELECT_0, *(encode_command([b"DEL", key]) for key in (b"a", b"b"))]
    commands.lose_observers()
    assert observer.is_lost
    assert commands.observers == []
