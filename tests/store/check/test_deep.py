"""The log, executed again, beside the tables: what is consistent in itself and is not what was logged."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import DeepCheck, check
from riverbed.store.check.deep import ReplayPlan, SpaceError
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.format.log_lines import encode_annotation, encode_command
from riverbed.store.format.resp import encode_entry
from riverbed.store.format.streams import entry_key
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log.manifest import FileType, LogFile, Manifest, serialize
from riverbed.store.model import Strategy, Trim
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.streams import trimming
from riverbed.store.streams.idempotence import sweep
from tests.support.scripts.random_commands import run_at_random
from tests.support.store.busy import busy
from tests.support.store.planting import damage, make_sound, violations
from tests.support.store.stores import Store, sid


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    make_sound(directory)
    return directory


def deep_check(directory: Path) -> DeepCheck:
    return DeepCheck(Replayer().execute, directory.parent)


def differences(directory: Path) -> list[str]:
    return [str(violation) for violation in check(directory, deep_check=deep_check(directory))]


def test_a_sound_store_is_what_its_log_makes(sound: Path) -> None:
    assert differences(sound) == []


def test_the_batches_behind_the_tables_are_executed_too(sound: Path) -> None:
    store = Store(sound)
    store.add(b"u", "1-0")
    store.commit()
    store.kill()
    assert differences(sound) == []


def test_a_store_of_which_most_is_dead_is_what_its_log_makes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    busy(store)
    store.checkpoint()
    store.engine.close()
    assert differences(tmp_path / "store") == []


@pytest.mark.parametrize("seed", range(6))
def test_random_states_are_what_their_logs_make(tmp_path: Path, seed: int) -> None:
    store = Store(tmp_path / "store", node_max_entries=4, segment_bytes=4000)
    for commands in run_at_random(store, seed, [20] * 12):
        if commands.chance(0.3):
            store.checkpoint()
        if commands.chance(0.3):
            store.purge()
    store.kill()
    assert differences(tmp_path / "store") == []


def test_a_log_without_tables_is_executed(sound: Path) -> None:
    for path in (sound / "state").iterdir():
        path.unlink()
    assert differences(sound) == []


# commands that are executed without being logged, and what of the tables is another thing then
_G = "group 'g' of 's' of database 0: the tables make"
_ALICE = "the log makes XCLAIM s g Alice 0 1-0 3-0 TIME 1700000000000 RETRYCOUNT 1 JUSTID ..."
_ONLY_LOG = "the log makes it, and it is not in the tables"
_ONLY_TABLES = "is in the tables, and the log does not make it"
UNLOGGED = {
    "XADD s 99999999999999-0 f v": "the tables make XADD s 99999999999999-0 f v; the log makes nothing more",
    "XDEL s 5-0": "entries: 's' of database 0: the tables make XADD s 6-0 f v; the log makes XADD s 5-0 f v",
    "XTRIM s MAXLEN 9": "entries: 's' of database 0: the tables make XADD s 3-0 f v; the log makes XADD s 1-0 f v",
    "XSETID s 99999999999999-0": "make XSETID s 99999999999999-0 ENTRIESADDED 12 MAXDELETEDID 10-0; the log makes XS",
    "XSETID s 99999999999999-0 ENTRIESADDED 77 MAXDELETEDID 10-0": "keys: 's' of database 0: the tables make "
    "XSETID s 99999999999999-0 ENTRIESADDED 77 MAXDELETEDID 10-0; the log makes XSETID s 1700000000000-1 ENTRIES",
    "DEL s": f"keys: 's' of database 0: {_ONLY_LOG}",
    "RENAME s r": f"keys: 'r' of database 0: {_ONLY_TABLES}",
    "MOVE s 7": f"keys: 's' of database 7: {_ONLY_TABLES}",
    "COPY s c": f"keys: 'c' of database 0: {_ONLY_TABLES}",
    "SWAPDB 0 9": f"keys: 's' of database 9: {_ONLY_TABLES}",
    "FLUSHDB": f"keys: 's' of database 0: {_ONLY_LOG}",
    "PEXPIREAT s 1800000000000": "make PEXPIREAT s 1800000000000; the log makes PEXPIREAT s 1700000000005",
    "PERSIST s": "keys: 's' of database 0: the tables make nothing more; the log makes PEXPIREAT s 1700000000005",
    "XGROUP CREATE s h 0": "groups: group 'h' of 's' of database 0: the tables make XGROUP CREATE s h 0-0 ENTRIESREAD "
    "-1; the log makes XCFGSET s",
    "XGROUP DESTROY s g": f"groups: {_G} XCFGSET s IDMP-DURATION 100 IDMP-MAXSIZE 100; the log makes XGROUP CREATE s",
    "XGROUP SETID s g 9-0": f"groups: {_G} XGROUP CREATE s g 9-0 ENTRIESREAD -1; the log makes XGROUP CREATE s g 7-0",
    "XGROUP SETID s g 7-0 ENTRIESREAD 1": f"groups: {_G} XGROUP CREATE s g 7-0 ENTRIESREAD 1; the log makes "
    "XGROUP CREATE s g 7-0 ENTRIESREAD -1",
    "XGROUP CREATECONSUMER s g Dave": f"groups: {_G} XGROUP CREATECONSUMER s g Dave; the log makes XCLAIM s g Alice",
    "XGROUP DELCONSUMER s g Bob": f"pel: {_G} XCLAIM s g Carol 0 7-0 TIME 1700000000000 RETRYCOUNT 1 JUSTID FORCE; "
    "the log makes XCLAIM s g Bob 0 5-0 6-0 TIME",
    "XGROUP POLICY s g MAXDELIVERIES 8 DEADLETTER dead CONSUMERTTL 1000": f"groups: {_G} XGROUP POLICY s g "
    "MAXDELIVERIES 8 DEADLETTER dead CONSUMERTTL 1000; the log makes XGROUP POLICY s g MAXDELIVERIES 9",
    "XACK s g 1-0": f"pel: {_G} XCLAIM s g Alice 0 3-0 TIME 1700000000000 RETRYCOUNT 1 JUSTID FORCE; {_ALICE}",
    "XCLAIM s g Bob 0 1-0 JUSTID": f"{_G} XCLAIM s g Bob 0 1-0 TIME 1700000000000 RETRYCOUNT 1 JUSTID FORCE; {_ALICE}",
    "XCLAIM s g Alice 0 1-0 TIME 5 JUSTID": f"{_G} XCLAIM s g Alice 0 1-0 TIME 5 RETRYCOUNT 1 JUSTID FORCE; {_ALICE}",
    "XCLAIM s g Alice 0 1-0 RETRYCOUNT 7 JUSTID": f"0 1-0 TIME 1700000000000 RETRYCOUNT 7 JUSTID FORCE; {_ALICE}",
    "XNACK s g SILENT IDS 1 1-0": f"pel: {_G} XCLAIM s g Alice 0 1-0 TIME 0 RETRYCOUNT 0 JUSTID FORCE; {_ALICE}",
    "XREADGROUP GROUP g Alice STREAMS s >": f"groups: {_G} XGROUP CREATE s g 1700000000000-1 ENTRIESREAD 12; the log "
    "makes XGROUP CREATE s g 7-0 ENTRIESREAD -1",
    "XADD s IDMP producer three * f v": "the tables make XADD s 1700000000000-2 f v; the log makes nothing more",
    "XADD s IDMP producer one * f v": "the tables make XIDMPCOUNTS s 2 1; the log makes XIDMPCOUNTS s 2 0",
    "XCFGSET s IDMP-DURATION 77": "the tables make XCFGSET s IDMP-DURATION 77 IDMP-MAXSIZE 100; the log makes XCFGSET "
    "s IDMP-DURATION 100",
}


@pytest.mark.parametrize("command", UNLOGGED)
def test_what_was_never_logged_is_found_and_nothing_else_could_tell(sound: Path, command: str) -> None:
    store = Store(sound, node_max_entries=4)
    store.run(*command.split())
    store.txn.log.clear()
    store.txn.extension_bytes = 0
    store.engine.checkpoint()
    store.engine.close()
    assert violations(sound) == []
    found = differences(sound)
    assert any(UNLOGGED[command] in difference for difference in found), found


def test_the_order_of_release_is_compared(sound: Path) -> None:
    store = Store(sound)
    store.run("XNACK", "s", "g", "FAIL", "IDS", 2, "1-0", "5-0")
    store.checkpoint()
    store.run("XCLAIM", "s", "g", "Bob", 0, "1-0", "RETRYCOUNT", 1, "JUSTID")
    store.run("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0")
    store.txn.log.clear()
    store.engine.checkpoint()
    store.engine.close()
    (found,) = differences(sound)
    assert "XNACK s g FAIL IDS 3 4-0 5-0 1-0 RETRYCOUNT 1 FORCE; the log makes XNACK s g FAIL IDS 3 4-0 1-0" in found


def test_fields_of_the_same_length_are_compared(sound: Path) -> None:
    key = entry_key(1, sid("6-0"))
    damage(sound, lambda rows: rows.put("entries", key, encode_entry(sid("6-0"), [b"f", b"w"])))
    assert violations(sound) == []
    assert differences(sound) == [
        "entries: 's' of database 0: the tables make XADD s 6-0 f w; the log makes XADD s 6-0 f v"
    ]


def test_an_expired_record_that_was_forgotten_is_no_difference(sound: Path) -> None:
    store = Store(sound)
    store.clock.now_ms += 10**9
    assert sweep(store.txn, store.clock.now_ms, lambda: False) == 2
    store.engine.checkpoint()
    assert store.count("idmp_ids") == 0
    store.engine.close()
    assert differences(sound) == []


def test_other_numbers_and_nodes_are_no_difference(tmp_path: Path) -> None:
    """Trims, deletions and groups that came and went leave other numbers than a log that was rewritten."""
    store = Store(tmp_path / "store", node_max_entries=3)
    store.fill(b"gone", 5)
    trimming.trim(store.fill(b"t", 40), Trim(Strategy.MAXLEN, 7))
    store.db.delete(store.stream(b"gone"))
    store.run("XGROUP", "CREATE", "t", "old", "0")
    store.run("XGROUP", "DESTROY", "t", "old")
    store.deliver(b"t", 3)
    store.run("XADD", "t", "IDMP", "p", "i", "*", "f", "v")
    store.checkpoint()
    store.engine.close()
    again = Store(tmp_path / "store", node_max_entries=100)
    again.deliver(b"t", 2, consumer="Bob")
    again.checkpoint()
    again.engine.close()
    assert differences(tmp_path / "store") == []


def test_a_log_that_was_taken_over_from_a_redis_is_executed_too(tmp_path: Path) -> None:
    commands = (
        b"SELECT 0",
        b"XADD s 1-0 f v",
        b"XADD s 2-0 f v",
        b"XGROUP CREATE s g 0",
        b"XGROUP CREATECONSUMER s g Alice",
        b"XCLAIM s g Alice 0 1-0 TIME 5 RETRYCOUNT 1 FORCE JUSTID LASTID 1-0",
    )
    home = tmp_path / "store" / LOG_DIRECTORY
    home.mkdir(parents=True)
    base = LogFile("appendonly.aof", 1, FileType.BASE)
    (home / base.name).write_bytes(b"".join(encode_command(command.split()) for command in commands))
    (home / "appendonly.aof.manifest").write_bytes(serialize(Manifest(base, replids=ReplicationIds.new())))
    store = Store(tmp_path / "store")
    store.add(b"s", "3-0")
    store.checkpoint()
    store.engine.close()
    assert differences(tmp_path / "store") == []


def test_what_does_not_fit_the_state_is_found(sound: Path) -> None:
    (log,) = (sound / LOG_DIRECTORY).glob("*.incr.aof")
    data = log.read_bytes()
    offset = int(data[data.rindex(b";off=") + 5 :].split(b";")[0])
    commands = encode_command([b"SELECT", b"0"]) + encode_command([b"XGROUP", b"SETID", b"nokey", b"g", b"1-0"])
    log.write_bytes(data + commands + encode_annotation(commands, offset + len(commands), 1))
    assert violations(sound) == []
    (found,) = check(sound, deep_check=deep_check(sound))
    assert (found.table, found.file, found.offset) == ("log", str(log), len(data))
    assert "does not fit the log before it" in found.reason


# -- space -------------------------------------------------------------------------------------------------------------


def test_the_space_is_announced_and_given_back(sound: Path) -> None:
    plans: list[ReplayPlan] = []
    deep = DeepCheck(Replayer().execute, sound.parent, announce=plans.append)
    assert list(check(sound, deep_check=deep)) == []
    (plan,) = plans
    assert plan.work.parent == sound.parent
    assert 0 < plan.log_bytes < plan.needed_bytes < plan.free_bytes
    assert os.listdir(sound.parent) == ["store"]


def test_nothing_is_begun_without_space(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.store.disk.files.OsFiles.free_bytes", lambda self, path: 1000)
    with pytest.raises(SpaceError, match="1,000 bytes free"):
        differences(sound)
    assert os.listdir(sound.parent) == ["store"]


def test_what_a_killed_check_left_goes_and_what_another_one_uses_stays(sound: Path) -> None:
    dead, living = sound.parent / ".riverbed-check-dead", sound.parent / ".riverbed-check-living"
    dead.mkdir()
    living.mkdir()
    fd = os.open(living, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        assert differences(sound) == []
    finally:
        os.close(fd)
    assert (dead.exists(), living.exists()) == (False, True)


def test_a_deep_check_can_end_early(sound: Path) -> None:
    damage(sound, lambda rows: rows.stream(entries_added=99))
    found = check(sound, deep_check=deep_check(sound))
    assert "the tables make XSETID s 1700000000000-1 ENTRIESADDED 99" in str(next(found))
    found.close()
    assert os.listdir(sound.parent) == ["store"]
    with lock_directory(sound):
        assert len(differences(sound)) == 1
