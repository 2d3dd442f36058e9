"""Primaries and replicas, one behaviour at a time: syncs, acknowledgements, roles, and what is refused."""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from riverbed.server.replication.sender import GETACK, PING
from riverbed.store.format.log_lines import encode_command
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log.manifest import LogFile
from riverbed.store.replication_id import ReplicationIds
from tests.conftest import StartRedis, StartRiverbed
from tests.support.faults.proxy import Proxy
from tests.support.read_log import change_manifest, manifest_of
from tests.support.replicas import fill, follow, info, offset_of, syncs, until_down, until_level, until_linked
from tests.support.servers import ROOT, RiverbedServer, Server
from tests.support.waiting import rewritten, until, until_blocked

SELECT = encode_command([b"SELECT", b"0"])
NEVER_S = 1_000_000  # far longer than any test


def entries(server: RiverbedServer, key: str = "s") -> bytes:
    with server.client() as client:
        return client.ask("XRANGE", key, "-", "+")


def test_a_replica_takes_everything_and_then_what_comes(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", 50)
        follow(replica, primary.port)
        assert entries(replica) == entries(primary)
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
    assert entries(replica) == entries(primary)
    assert syncs(primary)[0] == 1


def test_a_replica_of_a_primary_that_has_nothing_waits_for_nothing(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed(options={"repl-timeout": NEVER_S, "repl-ping-replica-period": NEVER_S})
    replica = start_riverbed()
    follow(replica, primary.port)
    until_linked(replica)
    assert offset_of(replica) == offset_of(primary)


def test_a_replica_is_the_store_of_its_primary(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", 50)
    primary.restart()  # its id is no replication id any more
    store_id = info(primary)["riverbed_store_id"]
    assert store_id not in (info(primary)["master_replid"], info(replica)["riverbed_store_id"])
    follow(replica, primary.port)
    assert info(replica)["riverbed_store_id"] == store_id
    with replica.client() as client:
        client.ask("REPLICAOF", "NO", "ONE")
        fill(client, "s", 5)
    replica.restart()
    assert info(replica)["riverbed_store_id"] == store_id


def test_a_replica_that_goes_on_is_told_which_store_it_follows(start_riverbed: StartRiverbed) -> None:
    """It may have another id of its own, when both have got one by themselves."""
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", 50)
    follow(replica, primary.port)
    replica.stop()
    replids = manifest_of(replica.directory).replids
    assert replids is not None
    change_manifest(replica.directory, replids=replace(replids, store_id="9" * 40))
    replica.options["replicaof"] = f"127.0.0.1 {primary.port}"
    replica.start()
    until_level(primary, replica)
    assert info(replica)["riverbed_store_id"] == info(primary)["riverbed_store_id"]
    assert syncs(primary)[:2] == (1, 1)


def test_a_rewritten_log_is_sent_with_its_base(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", 50)
        client.ask("SELECT", 3)
        fill(client, "t", 5)
        rewritten(primary)
        follow(replica, primary.port)
        client.ask("XADD", "t", "*", "f", "v")
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
    assert entries(replica) == entries(primary)
    with replica.client() as client:
        client.ask("SELECT", 3)
        assert client.ask("XLEN", "t") == b":6\r\n"


def test_a_replica_takes_more_at_once_than_its_own_clients_may_send(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed(options={"client-query-buffer-limit": 1 << 20})
    with primary.client() as client:
        client.ask("XADD", "s", "*", "f", b"x" * (3 << 20))
        follow(replica, primary.port)
        client.ask("XADD", "s", "*", "f", b"y" * (3 << 20))
    until_level(primary, replica)
    assert "damaged" not in replica.log_text()


def test_a_transaction_of_many_megabytes_reaches_replicas_and_theirs(start_riverbed: StartRiverbed) -> None:
    primary, replica, last = (start_riverbed() for _ in range(3))
    follow(replica, primary.port)
    follow(last, replica.port)
    with primary.client() as client:
        client.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        adds = [("XADD", "s", f"{number}-1", "f", "x" * 60) for number in range(1, 60_000)]
        reads = [
            ("XREADGROUP", "GROUP", "g", f"c{number}", "COUNT", "3", "STREAMS", "s", ">") for number in range(1000)
        ]
        long = ("XADD", "s", "70000-1", "f", "y" * (5 << 20))
        client.pipeline([("MULTI",), *adds, *reads, long, ("EXEC",)])
        until_level(primary, replica, last)
        shown = client.ask("XINFO", "STREAM", "s"), client.ask("XPENDING", "s", "g"), client.ask("DBSIZE")
    for follower in (replica, last):
        with follower.client() as client:
            assert shown == (client.ask("XINFO", "STREAM", "s"), client.ask("XPENDING", "s", "g"), client.ask("DBSIZE"))
            assert entries(follower) == entries(primary)
        assert "full sync follows" not in follower.log_text() and "damaged" not in follower.log_text()


def test_a_pause_of_clients_does_not_keep_replicas_from_being_heard(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed()
    with primary.client() as client, primary.client() as replica:
        replica.send("PSYNC", info(primary)["master_replid"], offset_of(primary) + 1)
        assert replica.reply().startswith(b"+CONTINUE ")
        assert client.ask("CLIENT", "PAUSE", 3_600_000) == b"+OK\r\n"
        replica.send("PING")
        while replica.reply() != b"+PONG\r\n":
            pass  # what the primary sends as the log
        assert client.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"


def test_a_log_that_comes_faster_than_tables_are_made_of_it_is_waited_with_and_then_taken(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes a log of more than 64 MB otherwise: no more is read than that, and the rest when there is room."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'riverbed.server.main' in sys.orig_argv:\n"
        "    from riverbed.server.replication import fullsync\n"
        "    fullsync.FAR_BYTES, fullsync.NEAR_BYTES = 1 << 17, 1 << 14\n"
    )
    primary = start_riverbed()
    with primary.client() as client:
        fill(client, "s", 3000, 1000)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'small'}{os.pathsep}{ROOT}")
    replica = start_riverbed()
    follow(replica, primary.port)
    until_level(primary, replica)
    assert entries(replica) == entries(primary)


def test_a_replica_that_was_away_is_sent_what_it_lacks(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed()
    replica = start_riverbed(options={"replicaof": f"127.0.0.1 {primary.port}"})
    until_linked(replica)
    replica.kill()
    with primary.client() as client:
        fill(client, "s", 500)
    replica.start()
    until_level(primary, replica)
    assert entries(replica) == entries(primary)
    assert syncs(primary)[:2] == (1, 1)


def test_a_replica_refuses_writes_and_says_whose_it_is(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    follow(replica, primary.port)
    with replica.client() as client:
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"-READONLY ")
        role = client.tree("ROLE").children or ()
        assert [part.text for part in role[:4]] == [b"slave", b"127.0.0.1", b"%d" % primary.port, b"connected"]
        assert client.ask("WAIT", 1, 10).startswith(b"-ERR WAIT cannot be used with replica instances.")
    assert info(primary)["slave0"].startswith(f"ip=127.0.0.1,port={replica.port},state=online,")


def test_a_replica_shows_the_policy_of_a_group_and_does_not_change_it(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    follow(replica, primary.port)
    with primary.client() as client, replica.client() as other:
        client.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        client.ask("XGROUP", "POLICY", "s", "g", "CONSUMERTTL", 60_000)
        until_level(primary, replica)
        shown = client.ask("XGROUP", "POLICY", "s", "g")
        assert b"60000" in shown
        assert other.ask("XGROUP", "POLICY", "s", "g") == shown
        assert other.pipeline([("MULTI",), ("xgroup", "policy", "s", "g"), ("EXEC",)])[2] == b"*1\r\n" + shown
        assert other.ask("XGROUP", "POLICY", "s", "g", "CONSUMERTTL", 1).startswith(b"-READONLY ")


def test_the_others_follow_a_promoted_replica_without_a_full_sync(start_riverbed: StartRiverbed) -> None:
    primary, first, second = start_riverbed(), start_riverbed(), start_riverbed()
    with primary.client() as client:
        fill(client, "s", 50)
    follow(first, primary.port)
    follow(second, primary.port)
    until_level(primary, first, second)
    primary.kill()
    with first.client() as client:
        client.ask("REPLICAOF", "NO", "ONE")
        client.ask("XADD", "s", "*", "f", "v")
        follow(second, first.port)
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
    assert syncs(first) == (0, 1, 0)
    primary.options["replicaof"] = f"127.0.0.1 {first.port}"
    primary.start()
    until_level(first, primary)
    assert syncs(first) == (0, 2, 0)
    assert entries(primary) == entries(second) == entries(first)


def test_a_replica_has_replicas(start_riverbed: StartRiverbed) -> None:
    primary, middle, last = start_riverbed(), start_riverbed(), start_riverbed()
    follow(middle, primary.port)
    follow(last, middle.port)
    with primary.client() as client:
        fill(client, "s", 50)
    until_level(primary, middle, last)
    assert entries(last) == entries(primary)
    assert info(last)["master_replid"] == info(primary)["master_replid"]


def test_waiting_for_replicas_ends_in_time(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    follow(replica, primary.port)
    with primary.client() as client:
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
        assert client.ask("WAIT", 2, 20) == b":1\r\n"
        assert client.ask("WAITAOF", 1, 1, 0) == b"*2\r\n:1\r\n:1\r\n"
        assert client.pipeline([("MULTI",), ("WAIT", 2, 0), ("EXEC",)])[2] == b"*1\r\n:1\r\n"


def questions(server: Server) -> int:
    """How often the log of a primary asks replicas how far they are."""
    logs = (server.directory / LOG_DIRECTORY).glob("*.incr.aof")
    return sum(path.read_bytes().count(GETACK) for path in logs)


def test_waiting_asks_a_redis_once_and_not_with_each_tick(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    primary = start_riverbed(
        options={"repl-timeout": NEVER_S, "repl-ping-replica-period": NEVER_S}
    )  # so that its log stands still
    replica = start_redis(options={"repl-timeout": NEVER_S})
    with primary.client() as client, primary.client() as other:
        fill(client, "s", 10)
        follow(replica, primary.port)
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
        client.send("WAIT", 2, 0)  # for ever
        until_blocked(other, 1)
        until_level(primary, replica)
        asked, offset = questions(primary), offset_of(primary)
        for _ in range(50):
            assert other.ask("WAIT", 2, 1) == b":1\r\n"
            assert other.ask("PING") == b"+PONG\r\n"
        time.sleep(1)
        assert questions(primary) == asked
        assert offset_of(primary) == offset
        assert other.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        assert other.ask("WAIT", 1, 0) == b":1\r\n"
        until_level(primary, replica)
        assert 1 <= questions(primary) <= 3  # the first wait, the one that nothing meets, and the last


def test_without_enough_replicas_writes_are_refused(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(options={"min-replicas-to-write": 1}), start_riverbed()
    with primary.client() as client:
        assert client.ask("XADD", "s", "*", "f", "v") == b"-NOREPLICAS Not enough good replicas to write.\r\n"
        follow(replica, primary.port)
        until(lambda: client.ask("XADD", "s", "*", "f", "v").startswith(b"$"), "a write with a replica")
        replica.kill()
        until(lambda: client.ask("XADD", "s", "*", "f", "v").startswith(b"-NOREPLICAS"), "a refused write")


def test_clients_that_wait_are_sent_away_when_a_server_becomes_a_replica(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    with replica.client() as waiting, replica.client() as other:
        waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until(lambda: info(replica, "clients")["blocked_clients"] == "1", "a client that waits")
        other.ask("REPLICAOF", "127.0.0.1", primary.port)
        assert waiting.reply().startswith(b"-UNBLOCKED force unblock from blocking operation")
        assert waiting.rest_until_closed() == b""


def test_a_reader_on_a_replica_is_woken_by_what_the_primary_is_told(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(), start_riverbed()
    follow(replica, primary.port)
    with replica.client() as waiting, primary.client() as client:
        waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until(lambda: info(replica, "clients")["blocked_clients"] == "1", "a client that waits")
        client.ask("XADD", "s", "1-1", "f", "v")
        assert b"1-1" in waiting.reply()


def test_a_replica_without_a_link_may_refuse_reads(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed()
    replica = start_riverbed(options={"replica-serve-stale-data": "no"})
    with replica.client() as client:
        follow(replica, primary.port)
        assert client.ask("XLEN", "s") == b":0\r\n"
        primary.kill()
        until_down(replica)
        assert client.ask("XLEN", "s").startswith(b"-MASTERDOWN ")
        assert client.ask("CONFIG", "SET", "replica-serve-stale-data", "yes") == b"+OK\r\n"
        assert client.ask("XLEN", "s") == b":0\r\n"


def test_a_primary_with_a_password_is_given_it(start_riverbed: StartRiverbed) -> None:
    primary, replica = start_riverbed(options={"requirepass": "secret"}), start_riverbed()
    with replica.client() as client:
        client.ask("REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: "password" in info(replica)["riverbed_master_link_reason"], "a refused link")
        client.ask("CONFIG", "SET", "masterauth", "secret")
    until_linked(replica)


def test_a_server_that_quotes_the_password_does_not_bring_it_into_the_log(start_riverbed: StartRiverbed) -> None:
    replica = start_riverbed(options={"masterauth": "s3cret", "masteruser": "somebody"})
    with socket.create_server(("127.0.0.1", 0)) as listener, replica.client() as client:
        client.ask("REPLICAOF", "127.0.0.1", listener.getsockname()[1])
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(b"+PONG\r\n")
            peer.recv(1000)
            peer.sendall(b"-ERR \x1b[2J unknown command 'AUTH', with args beginning with: 'somebody' 's3cret'\r\n")
            until(lambda: "(redacted)" in info(replica).get("riverbed_master_link_reason", ""), "a refused link")
            told = client.ask("INFO", "everything")
            assert b"s3cret" not in told
            assert b"\x1b" not in told
            assert b"\\x1b[2J" in told
        client.ask("REPLICAOF", "NO", "ONE")
    log = replica.log_text()
    assert "(redacted)" in log
    assert "s3cret" not in log
    assert "\x1b" not in log


# -- a real Redis ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_base", [False, True])
def test_a_real_redis_follows_and_goes_on_after_a_cut(
    start_riverbed: StartRiverbed, start_redis: StartRedis, with_base: bool
) -> None:
    primary, replica = start_riverbed(), start_redis()
    with primary.client() as client, Proxy(lambda: primary.port) as proxy:
        client.ask("SELECT", 2)
        fill(client, "s", 100)
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        if with_base:
            rewritten(primary)
        follow(replica, proxy.port)
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 5, "STREAMS", "s", ">")
        until_level(primary, replica)
        full, partial, _ = syncs(primary)
        proxy.cut()
        fill(client, "s", 10)
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
        assert (syncs(primary)[0], syncs(primary)[1]) == (full, partial + 1)
        with replica.client() as other:
            other.ask("SELECT", 2)
            assert other.ask("XRANGE", "s", "-", "+") == client.ask("XRANGE", "s", "-", "+")
            assert other.ask("XPENDING", "s", "g") == client.ask("XPENDING", "s", "g")


@pytest.mark.parametrize("place", ["base", "log", "live"])
@pytest.mark.parametrize("is_ours", [False, True])
def test_a_replica_that_reads_slowly_is_kept_a_slice_of_a_long_entry(
    start_riverbed: StartRiverbed, place: str, is_ours: bool
) -> None:
    """However long the entry is, the output limit of replicas needs not be as high."""
    size = 40 << 20
    primary = start_riverbed()
    entry = ("XADD", "s", "*", "f", bytes(size))
    with primary.client(timeout_s=60) as client, primary.client(timeout_s=60) as replica:
        client.ask(*entry) if place != "live" else client.ask("XADD", "s", "*", "f", "v")
        if place == "base":
            rewritten(primary)
        if is_ours:
            replica.ask("REPLCONF", "riverbed", 1)
        replica.send("PSYNC", "?", -1)
        until(lambda: int(info(primary)["connected_slaves"]) == 1, "a replica")
        if place == "live":
            client.ask("XADD", "s", "*", "f", "v")
            until(lambda: held_for_replica(primary)[0] > 100, "a replica that was sent what there is")
            client.ask(*entry)
        until(lambda: held_for_replica(primary)[1] > 0, "a replica that reads nothing")
        assert held_for_replica(primary)[1] <= 2 << 20


def held_for_replica(primary: Server) -> tuple[int, int]:
    """How much the one replica was sent, and how much of it waits in memory, in bytes."""
    with primary.client() as client:
        line = next(line for line in client.tree("CLIENT", "LIST").text.decode().splitlines() if "cmd=psync" in line)
    words = dict(word.split("=", 1) for word in line.split(" "))
    return int(words["tot-net-out"]), int(words["omem"])


@pytest.mark.parametrize("with_base", [False, True])
def test_an_entry_above_the_output_limit_of_replicas_reaches_a_redis(
    start_riverbed: StartRiverbed, start_redis: StartRedis, with_base: bool
) -> None:
    limits = "normal 0 0 0 replica 2mb 0 0 pubsub 0 0 0"
    primary, replica = start_riverbed(options={"client-output-buffer-limit": limits}), start_redis()
    with primary.client(timeout_s=60) as client:
        client.ask("XADD", "s", "*", "f", os.urandom(30 << 20))
        if with_base:
            rewritten(primary)
        follow(replica, primary.port)
        client.ask("XADD", "s", "*", "f", os.urandom(30 << 20))
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
        with replica.client(timeout_s=60) as other:
            assert other.ask("XRANGE", "s", "-", "+") == client.ask("XRANGE", "s", "-", "+")
    assert syncs(primary)[0] == 1
    assert info(primary, "stats")["client_output_buffer_limit_disconnections"] == "0"


@pytest.mark.parametrize("told", [("ACK", 1 << 62), ("ACK", 0, "FACK", 1 << 62)])
def test_a_replica_is_not_believed_to_have_what_was_never_written(
    start_riverbed: StartRiverbed, told: tuple[str | int, ...]
) -> None:
    primary = start_riverbed()
    with primary.client() as client, primary.client() as replica:
        client.ask("XADD", "s", "*", "f", "v")
        replica.send("PSYNC", "?", -1)
        until(lambda: info(primary)["connected_slaves"] == "1", "a replica")
        replica.send("REPLCONF", *told)
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("WAIT", 1, 500) == b":0\r\n"
        until(lambda: info(primary)["connected_slaves"] == "0", "the end of its link")
    assert f"it says that it has offset {told[1]}, and the log ends at" in primary.log_text()


@pytest.mark.parametrize("words", [("XADD", "s", "1-1", "f", "v"), ("XLEN", "s")])
def test_a_replica_may_not_use_keys(start_riverbed: StartRiverbed, words: tuple[str, ...]) -> None:
    primary = start_riverbed()
    with primary.client() as client, primary.client() as replica:
        replica.send("PSYNC", "?", -1)
        until(lambda: info(primary)["connected_slaves"] == "1", "a replica")
        replica.send(*words)
        refused = b"cmdstat_%b:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1" % words[0].lower().encode()
        until(lambda: refused in client.ask("INFO", "commandstats"), "a refused command")
        assert client.ask("EXISTS", "s") == b":0\r\n"


def test_a_replica_cannot_add_fields_to_its_line_in_info(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed()
    with primary.client() as replica:
        for port in ("9" * 30, "0" * 20 + "99999", "65536"):
            assert replica.ask("REPLCONF", "listening-port", port).startswith(b"-ERR value is not an integer")
        for address in ("x,port=1,state=online", "a=b", "a b", "a\r\nrole:master"):
            assert replica.ask("REPLCONF", "ip-address", address) == b"-ERR Invalid ip-address\r\n"
        assert replica.ask("REPLCONF", "ip-address", "replica-1.example.org") == b"+OK\r\n"


def test_what_a_replica_asks_for_reaches_the_log_without_control_characters(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed()
    with primary.client() as client, primary.client() as replica:
        client.ask("XADD", "s", "*", "f", "v")
        replica.send("PSYNC", b"\x1b[31mred\nline", 5)
        until(lambda: "asks for offset 4 of" in primary.log_text(), "a line about the question")
    assert r"asks for offset 4 of \x1b[31mred" in primary.log_text()
    assert "\x1b" not in primary.log_text()


def deleted(server: Server, key: str) -> bytes:
    with server.client() as client:
        shown = client.tree("XINFO", "STREAM", key).pairs()
    return next(value.text for name, value in shown if name.text == b"max-deleted-entry-id")


@pytest.mark.parametrize(("deletes", "ours", "of_redis"), [(True, b"1-1", b"1-1"), (False, b"0-0", b"0-1")])
def test_a_redis_does_not_take_a_trim_that_respects_groups_for_deletions(
    start_riverbed: StartRiverbed, start_redis: StartRedis, *, deletes: bool, ours: bytes, of_redis: bytes
) -> None:
    primary, replica, follower = start_riverbed(), start_redis(), start_riverbed()
    follow(replica, primary.port)
    follow(follower, primary.port)
    with primary.client() as client:
        client.pipeline([("XADD", "s", f"{number}-1", "f", "v") for number in range(1, 6)])
        if deletes:
            client.ask("XDEL", "s", "1-1")
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
        client.ask("XACK", "s", "g", "2-1", "4-1")
        assert client.ask("XTRIM", "s", "MAXLEN", 0, "ACKED").startswith(b":")
        until_level(primary, replica, follower)
        with replica.client() as other:
            assert other.ask("XRANGE", "s", "-", "+") == client.ask("XRANGE", "s", "-", "+")
    assert (deleted(primary, "s"), deleted(follower, "s"), deleted(replica, "s")) == (ours, ours, of_redis)
    follower.restart()
    assert deleted(follower, "s") == ours


def test_the_log_says_why_a_replica_was_cut_off(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed(options={"client-output-buffer-limit": "normal 0 0 0 replica 4096 0 0 pubsub 0 0 0"})
    with primary.client() as client, primary.client() as replica:
        client.ask("XADD", "s", "*", "f", bytes(30 << 20))
        replica.ask("REPLCONF", "riverbed", 1)
        replica.send("PSYNC", "?", -1)  # and reads nothing
        until(lambda: "client-output-buffer-limit" in primary.log_text(), "a line about the output limit")
    assert re.search(r"replica 127[.0-9]+:\d+ is cut off: it has not read \d+ bytes", primary.log_text())


def base_of(server: RiverbedServer) -> LogFile:
    base = manifest_of(server.directory).base
    assert base is not None
    return base


@pytest.mark.parametrize("offset", [-200, -1])
def test_a_real_redis_may_begin_below_zero(start_riverbed: StartRiverbed, start_redis: StartRedis, offset: int) -> None:
    """The state as commands may be longer than all that was ever written; -1 means something else to a Redis."""
    primary, replica = start_riverbed(), start_redis()
    with primary.client() as client:
        for number in range(5):
            client.ask("XADD", f"s{number}", "1-1", "f", "v")
        rewritten(primary)
        prefix = (base_of(primary).command_bytes or 0) + len(SELECT) + len(GETACK)
        missing = prefix + offset - offset_of(primary)
        padding = [encode_command([b"XADD", b"p", b"1-1", b"f", b"x" * size]) for size in range(1000)]
        delete = encode_command([b"DEL", b"p"])
        size = next(size for size, words in enumerate(padding) if len(words + delete) == missing)
        client.pipeline([("XADD", "p", "1-1", "f", "x" * size), ("DEL", "p")])
        assert offset_of(primary) == prefix + offset
        rewritten(primary)
        follow(replica, primary.port)
        client.ask("XADD", "s4", "2-1", "f", "v")
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
        with replica.client() as other:
            assert other.ask("XRANGE", "s4", "-", "+") == client.ask("XRANGE", "s4", "-", "+")
    until_level(primary, replica)
    announced = offset - len(PING) if offset == -1 else offset
    assert re.search(rf"Full resync from master: \w+:{announced}\n", replica.log_text())


def test_a_log_that_was_taken_over_from_a_redis_is_sent_to_a_redis(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    """It is ours from offset 0 on, which all of its contents lie before."""
    source = start_redis(options={"appendonly": "yes", "aof-use-rdb-preamble": "no"})
    with source.client() as client:
        fill(client, "s", 2000)
        client.ask("XGROUP", "CREATE", "s", "g", 0)
        client.ask("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 50, "STREAMS", "s", ">")
    rewritten(source)
    source.stop()
    change_manifest(source.directory, replids=ReplicationIds.new())
    primary, replica = start_riverbed(directory=source.directory), start_redis()
    follow(replica, primary.port)
    with primary.client() as client, replica.client() as other:
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("WAIT", 1, 0) == b":1\r\n"
        for words in (("XRANGE", "s", "-", "+"), ("XPENDING", "s", "g")):
            assert other.ask(*words) == client.ask(*words)


def test_a_redis_is_not_followed_and_the_reason_is_told(start_riverbed: StartRiverbed, start_redis: StartRedis) -> None:
    redis, replica = start_redis(), start_riverbed()
    with replica.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("REPLICAOF", "127.0.0.1", redis.port)
        until(lambda: "is a Redis" in info(replica).get("riverbed_master_link_reason", ""), "a reason")
        assert client.ask("XLEN", "s") == b":1\r\n"
