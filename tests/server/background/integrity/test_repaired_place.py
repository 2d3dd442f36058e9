"""What of the old tables outlives a repair or a full sync: the cursors of SCAN, and who may read the files."""

from __future__ import annotations

import stat
from pathlib import Path

from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, STATE_DIRECTORY
from tests.conftest import StartRiverbed
from tests.server.background.integrity.test_repairs import QUIET, require_whole, with_damage
from tests.support.in_process import value_of
from tests.support.raw import parse
from tests.support.replicas import fill, follow, until_level
from tests.support.waiting import rewritten

KEYS = 60
STATE_MODE, FILE_MODE, LOG_MODE = 0o750, 0o640, 0o711


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_scan_over_a_repair_misses_no_key(start_riverbed: StartRiverbed) -> None:
    """The numbers of the old tables have gaps, which those of the new ones have not."""
    server = with_damage(start_riverbed)
    with server.client() as client:
        for number in range(KEYS):
            client.ask("XADD", f"gone{number}", "1-1", "f", "v")
            client.ask("XADD", f"key{number}", "1-1", "f", "v")
            client.ask("DEL", f"gone{number}")
        cursor, seen = b"0", set()
        for looks in range(1, 1000):
            cursor, keys = value_of(parse(client.ask("SCAN", cursor.decode(), "COUNT", "7")))
            seen |= set(keys)
            if looks in (1, 4, 6):
                assert b"offset" in client.ask("RIVERBED", "REPAIR")
            if cursor == b"0":
                break
        assert seen == {b"s", *(b"key%d" % number for number in range(KEYS))}
        assert looks > 6
    require_whole(server)


def test_repaired_tables_have_the_modes_of_the_old_ones(start_riverbed: StartRiverbed) -> None:
    server = with_damage(start_riverbed)
    state = server.directory / STATE_DIRECTORY
    state.chmod(STATE_MODE)
    (state / DATA_NAME).chmod(FILE_MODE)
    with server.client() as client:
        assert b"offset" in client.ask("RIVERBED", "REPAIR")
    assert (mode_of(state), mode_of(state / DATA_NAME)) == (STATE_MODE, FILE_MODE)
    require_whole(server)


def test_what_a_full_sync_brings_has_the_modes_of_what_it_replaces(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(options=QUIET), start_riverbed(options=QUIET)
    state, home = replica.directory / STATE_DIRECTORY, replica.directory / LOG_DIRECTORY
    with replica.client() as client:
        fill(client, "old", 10)
    state.chmod(STATE_MODE)
    (state / DATA_NAME).chmod(FILE_MODE)
    home.chmod(LOG_MODE)
    with primary.client() as client:
        fill(client, "s", 200)
        rewritten(primary)
        follow(replica, primary.port)
        until_level(primary, replica)
    assert (mode_of(state), mode_of(state / DATA_NAME)) == (STATE_MODE, FILE_MODE)
    assert mode_of(home) == LOG_MODE
