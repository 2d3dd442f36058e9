"""A session of redis-py, whichever version is on the path: `python client_session.py PORT PROTOCOL`.

Run as a program of its own, because one process can hold only one version of a library.  Every command that a stream
without groups, a key, a connection or the server understands is sent through the library's own methods where it has
one, so that its parsers see our replies.  Says `redis-py VERSION: SECTION ok` for each section; an assertion ends it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ResponseError, WatchError

BINARY = bytes(range(256)) * 3


def raises(text: str, call: Callable[[], object]) -> None:
    """`call` is refused with an error that says `text`."""
    said = "nothing"
    try:
        call()
    except ResponseError as error:
        said = str(error)
    assert text in said, f"expected {text!r}, the server said {said!r}"


def read(client: redis.Redis, *args: Any, **kwargs: Any) -> dict[Any, list[Any]]:
    """XREAD's result as a dict: redis-py returns lists or dicts, depending on the protocol."""
    reply = client.xread(*args, **kwargs)
    if not reply:
        return {}
    pairs = reply.items() if isinstance(reply, dict) else reply
    found = {}
    for stream, entries in pairs:
        flat = entries[0] if entries and isinstance(entries[0], list) else entries
        found[stream] = [(entry_id, dict(fields)) for entry_id, fields in flat]
    return found


def appending(client: redis.Redis) -> None:
    assert client.xadd("s", {"a": "1", "b": "2"}, id="1-1") == "1-1"
    assert client.xadd("s", {"a": "3"}, id="1-*") == "1-2"
    first = client.xadd("s", {"a": "4"})
    ms, seq = map(int, first.split("-"))
    assert abs(ms / 1000 - time.time()) < 60
    assert seq == 0
    assert client.xadd("nothing", {"a": "1"}, nomkstream=True) is None
    assert client.exists("nothing") == 0
    raises("equal or smaller", lambda: client.xadd("s", {"a": "5"}, id="1-1"))
    raises("must be greater than 0-0", lambda: client.xadd("s2", {"a": "5"}, id="0-0"))
    raises("Invalid stream ID", lambda: client.xadd("s2", {"a": "5"}, id="x"))
    for number in range(20):
        client.xadd("t", {"n": number}, id=f"{number + 1}-0", maxlen=10, approximate=False)
    assert client.xlen("t") == 10
    assert client.xadd("t", {"n": 20}, id="21-0", minid="20-0", approximate=False) == "21-0"
    assert client.xlen("t") == 2
    assert client.xadd("t", {"n": 21}, id="22-0", maxlen=1, approximate=True, limit=100) == "22-0"
    assert client.xadd("t", {"n": 22}, id="23-0", maxlen=3, approximate=False, ref_policy="ACKED") == "23-0"
    assert client.xlen("t") == 3
    assert client.xtrim("t", maxlen=2, approximate=False) == 1
    assert client.xtrim("t", minid="23-0", approximate=False, ref_policy="DELREF") == 1
    assert client.xtrim("t", maxlen=1, approximate=True, limit=10) == 0
    assert client.xdel("t", "23-0", "99-0") == 1
    assert client.xlen("t") == 0
    assert client.exists("t") == 1
    assert client.type("t") == "stream"


def appending_once(client: redis.Redis) -> None:
    first = client.xadd("once", {"a": "1"}, idmp=("producer", b"order-1"))
    assert client.xadd("once", {"a": "2"}, idmp=("producer", b"order-1")) == first
    second = client.xadd("once", {"a": "1"}, idmpauto="producer-2")
    assert client.xadd("once", {"a": "1"}, idmpauto="producer-2") == second
    assert client.xlen("once") == 2
    info = client.xinfo_stream("once")
    assert (info["pids-tracked"], info["iids-added"], info["iids-duplicates"]) == (2, 2, 2)
    assert client.xcfgset("once", idmp_duration=60, idmp_maxsize=50) in (True, "OK", b"OK")
    info = client.xinfo_stream("once")
    assert (info["idmp-duration"], info["idmp-maxsize"], info["iids-tracked"]) == (60, 50, 0)
    raises("no such key", lambda: client.xcfgset("nothing", idmp_duration=60))


def reading(client: redis.Redis) -> None:
    for number in range(1, 6):
        client.xadd("r", {"n": str(number)}, id=f"{number}-0")
    assert client.xrange("r") == [(f"{n}-0", {"n": str(n)}) for n in range(1, 6)]
    assert client.xrange("r", "(2-0", "4", count=1) == [("3-0", {"n": "3"})]
    assert client.xrevrange("r", "+", "-", count=2) == [("5-0", {"n": "5"}), ("4-0", {"n": "4"})]
    assert client.xrange("nothing") == []
    client.xadd("r2", {"n": "1"}, id="1-0")
    assert read(client, {"r": "4-0", "r2": "0"}) == {"r": [("5-0", {"n": "5"})], "r2": [("1-0", {"n": "1"})]}
    assert read(client, {"r": "0"}, count=2)["r"][-1][0] == "2-0"
    assert read(client, {"r": "+"}) == {"r": [("5-0", {"n": "5"})]}
    assert read(client, {"r": "$"}) == {}
    assert read(client, {"r": "5-0"}, block=5) == {}
    raises("Invalid stream ID", lambda: client.xread({"r": "x"}))
    assert client.execute_command("XSETID", "r2", "9-9", "ENTRIESADDED", 7, "MAXDELETEDID", "3-0") in ("OK", True)
    info = client.xinfo_stream("r2")
    assert info["length"] == 1
    assert info["last-generated-id"] == "9-9"
    assert info["entries-added"] == 7
    assert info["max-deleted-entry-id"] == "3-0"
    assert info["groups"] == 0
    assert info["first-entry"] == info["last-entry"]
    assert info["first-entry"][0] == "1-0"
    full = client.xinfo_stream("r", full=True)
    assert full["length"] == 5
    assert len(full["entries"]) == 5
    assert full["groups"] == []
    raises("no such key", lambda: client.xinfo_stream("nothing"))
    assert any("STREAM" in str(line) for line in client.execute_command("XINFO", "HELP"))


def waiting(client: redis.Redis, another: redis.Redis) -> None:
    """A blocked reader is served by an append to any of its keys, and released by CLIENT UNBLOCK."""
    waiting_id = client.client_id()

    def append() -> None:
        another.xadd("w2", {"a": "1"}, id="5-0")

    def release() -> None:
        assert another.client_unblock(waiting_id) in (True, 1)

    for action, expected in ((append, {"w2": [("5-0", {"a": "1"})]}), (release, {})):
        timer = threading.Timer(0.2, action)
        timer.start()
        assert read(client, {"w1": "$", "w2": "$"}, block=20_000) == expected
        timer.join()


def keys(client: redis.Redis) -> None:
    for name in ("k1", "k2", "k3"):
        client.xadd(name, {"a": "1"}, id="1-0")
    assert client.exists("k1", "k2", "k1", "none") == 3
    assert sorted(client.keys("k?")) == ["k1", "k2", "k3"]
    assert set(client.scan_iter(match="k*", count=1)) == {"k1", "k2", "k3"}
    assert set(client.scan_iter(_type="stream")) == set(client.keys())
    assert client.rename("k1", "k4") is True
    assert not client.renamenx("k2", "k3")
    assert client.renamenx("k2", "k5")
    raises("no such key", lambda: client.rename("k1", "k2"))
    assert client.copy("k4", "k6") in (True, 1)
    assert client.copy("k4", "k6") in (False, 0)
    assert client.copy("k4", "k6", replace=True) in (True, 1)
    assert client.copy("k4", "k4", destination_db=9) in (True, 1)
    assert client.move("k6", 9) in (True, 1)
    assert client.touch("k3", "k4", "none") == 2
    assert client.delete("k3", "none") == 1
    assert client.unlink("k4") == 1
    names = client.keys()
    assert client.randomkey() in names
    assert client.dbsize() == len(names)
    assert client.object("ENCODING", "k5") == "stream"
    assert client.object("REFCOUNT", "k5") == 1
    assert client.object("IDLETIME", "k5") >= 0
    assert client.memory_usage("k5") > 0
    assert client.memory_usage("none") is None


def lifetimes(client: redis.Redis) -> None:
    client.xadd("e", {"a": "1"})
    assert client.ttl("e") == -1
    assert client.ttl("none") == -2
    assert client.expire("e", 1_000)
    assert 900 <= client.ttl("e") <= 1_000
    assert not client.expire("e", 2_000, nx=True)
    assert client.expire("e", 2_000, gt=True)
    assert client.pexpire("e", 1_500_000, lt=True)
    assert 1_400_000 < client.pttl("e") <= 1_500_000
    at = int(time.time()) + 5_000
    assert client.expireat("e", at, xx=True)
    assert client.expiretime("e") == at
    assert client.pexpireat("e", at * 1_000 + 7)
    assert client.pexpiretime("e") == at * 1_000 + 7
    assert client.persist("e")
    assert client.pttl("e") == -1
    assert client.pexpire("e", 1)
    deadline = time.monotonic() + 120
    while client.exists("e"):
        assert time.monotonic() < deadline
    client.xadd("e", {"a": "1"})
    assert client.expire("e", -1)
    assert client.exists("e") == 0


def databases(client: redis.Redis, port: int, protocol: int) -> None:
    assert client.select(9) in (True, "OK")
    assert sorted(client.keys()) == ["k4", "k6"]
    assert client.swapdb(9, 10) in (True, "OK")
    assert client.dbsize() == 0
    assert client.select(10) in (True, "OK")
    assert client.dbsize() == 2
    assert client.flushdb() is True
    assert client.flushdb(asynchronous=True) is True
    assert client.select(0) in (True, "OK")
    assert client.dbsize() > 0
    raises("DB index is out of range", lambda: client.select(16))
    with redis.Redis(port=port, protocol=protocol, db=15, decode_responses=True) as other:
        other.xadd("far", {"a": "1"}, id="1-0")
        assert other.client_info()["db"] in (15, "15")
        assert other.flushdb()


def transactions(client: redis.Redis, another: redis.Redis) -> None:
    with client.pipeline() as pipe:
        pipe.xadd("m", {"a": "1"}, id="1-0").xlen("m").xadd("m", {"a": "1"}, id="1-0").xrange("m")
        results = pipe.execute(raise_on_error=False)
    assert results[:2] == ["1-0", 1]
    assert isinstance(results[2], ResponseError)
    assert results[3] == [("1-0", {"a": "1"})]
    with client.pipeline(transaction=False) as pipe:
        for number in range(2, 500):
            pipe.xadd("m", {"a": number}, id=f"{number}-0")
        assert pipe.execute() == [f"{number}-0" for number in range(2, 500)]
    with client.pipeline() as pipe:
        pipe.watch("m")
        length = pipe.xlen("m")
        another.xadd("m", {"a": "x"}, id="1000-0")
        pipe.multi()
        pipe.xadd("m", {"a": length}, id="2000-0")
        refused = False
        try:
            pipe.execute()
        except WatchError:
            refused = True
        assert refused, "a watched key was changed and EXEC went through"
    assert client.transaction(lambda pipe: (pipe.multi(), pipe.xlen("m")), "m") == [500]
    with client.pipeline() as pipe:
        pipe.xadd("m", {"a": "1"}, id="3000-0")
        pipe.execute_command("NOSUCHCOMMAND")
        raises("unknown command", pipe.execute)
    assert client.xrevrange("m", count=1)[0][0] == "1000-0"
    with client.pipeline() as pipe:
        pipe.watch("m")
        pipe.unwatch()
        pipe.multi()
        pipe.xlen("m")
        assert pipe.execute() == [500]


def connection(client: redis.Redis, another: redis.Redis) -> None:
    assert client.ping() is True
    assert client.echo("hello") == "hello"
    client_id = client.client_id()
    assert client.client_setname("me") in (True, "OK")
    assert client.client_getname() == "me"
    info = client.client_info()
    assert int(info["id"]) == client_id
    assert info["name"] == "me"
    assert info["lib-name"].startswith("redis-py")
    assert client_id in {int(one["id"]) for one in client.client_list()}
    assert client.client_list(client_id=[client_id])[0]["name"] == "me"
    victim = another.client_id()
    assert client.client_kill_filter(_id=victim) == 1
    assert another.ping() is True  # on a new connection
    assert another.client_id() != victim
    assert client.client_pause(1) in (True, "OK")
    assert client.client_unpause() in (True, "OK")
    assert client.client_no_evict("ON") in (True, "OK")
    assert client.client_no_touch("ON") in (True, "OK")
    raises("unknown command", lambda: client.execute_command("NOSUCHCOMMAND", "a"))
    raises("wrong number of arguments", lambda: client.execute_command("XLEN"))


def server(client: redis.Redis) -> None:
    info = client.info()
    assert info["redis_version"] == "8.8.0"
    assert info["riverbed_version"]
    assert info["connected_clients"] >= 1
    assert info["role"] == "master"
    assert "keys" in info["db0"]
    assert client.info("server")["tcp_port"] > 0
    assert "cmdstat_xadd" in client.info("commandstats")
    seconds, microseconds = client.time()
    assert abs(seconds - time.time()) < 60
    assert 0 <= microseconds < 1_000_000
    assert client.lastsave().timestamp() > 0
    assert client.save() is True
    assert client.bgsave() in (True, "Background saving started")
    assert client.config_get("appendfsync") == {"appendfsync": "always"}
    assert client.config_get("stream-node-max-*")["stream-node-max-entries"] == "100"
    assert client.config_set("slowlog-max-len", 64) is True
    assert client.config_get("slowlog-max-len") == {"slowlog-max-len": "64"}
    assert client.config_resetstat() in (True, "OK")
    raises("Unknown option", lambda: client.config_set("no-such-setting", 1))
    count = client.command_count()
    assert count == len(client.command())
    assert count == sum("|" not in name for name in client.command_list())
    assert client.command_list(category="stream")
    assert client.command()["xadd"]["arity"] == -5
    assert "xadd" in client.execute_command("COMMAND DOCS", "xadd")
    assert client.command_getkeys("XREAD", "COUNT", 2, "STREAMS", "a", "b", "0", "0") == ["a", "b"]
    assert client.config_set("slowlog-log-slower-than", 0) is True
    client.ping()
    entries = client.slowlog_get(128)
    assert any("PING" in str(entry["command"]) for entry in entries)
    assert client.slowlog_len() >= 1
    assert client.slowlog_reset() in (True, "OK")
    assert client.config_set("slowlog-log-slower-than", 10_000) is True
    assert isinstance(client.latency_latest(), list)
    assert client.latency_reset() >= 0
    assert client.execute_command("DEBUG", "SLEEP", "0") in ("OK", True)


def binary(port: int, protocol: int) -> None:
    with redis.Redis(port=port, protocol=protocol) as client:
        key = b"\xff\x00\r\n" * 300
        entry_id = client.xadd(key, {BINARY: BINARY, b"": b""})
        assert client.xrange(key) == [(entry_id, {BINARY: BINARY, b"": b""})]
        large = b"x" * (5 << 20)
        entry_id = client.xadd(key, {b"large": large})
        assert client.xrevrange(key, count=1) == [(entry_id, {b"large": large})]
        assert client.unlink(key) == 1


def monitoring(client: redis.Redis) -> None:
    with client.monitor() as monitor:
        client.xadd("monitored", {"a": "1"}, id="1-0")
        for _ in range(20):
            command = monitor.next_command()
            if "XADD" in command["command"].upper():
                assert command["command"] == "XADD monitored 1-0 a 1"
                return
    raise AssertionError("MONITOR did not show the command")


async def asynchronous(port: int, protocol: int) -> None:
    async with redis.asyncio.Redis(port=port, protocol=protocol, decode_responses=True) as client:
        ids = await asyncio.gather(*(client.xadd("async", {"n": number}) for number in range(100)))
        assert len(set(ids)) == 100
        assert await client.xlen("async") == 100
        async with client.pipeline() as pipe:
            assert await pipe.xlen("async").xdel("async", *ids).execute() == [100, 100]


def main(port: int, protocol: int) -> None:
    options: dict[str, Any] = {"port": port, "protocol": protocol, "decode_responses": True}
    with redis.Redis(single_connection_client=True, **options) as client, redis.Redis(**options) as another:
        assert client.flushall() is True
        sections: list[tuple[str, Callable[[], object]]] = [
            ("appending", lambda: appending(client)),
            ("appending once", lambda: appending_once(client)),
            ("reading", lambda: reading(client)),
            ("waiting", lambda: waiting(client, another)),
            ("keys", lambda: keys(client)),
            ("lifetimes", lambda: lifetimes(client)),
            ("databases", lambda: databases(client, port, protocol)),
            ("transactions", lambda: transactions(client, another)),
            ("connection", lambda: connection(client, another)),
            ("server", lambda: server(client)),
            ("binary", lambda: binary(port, protocol)),
            ("monitoring", lambda: monitoring(another)),
            ("asynchronous", lambda: asyncio.run(asynchronous(port, protocol))),
        ]
        for name, run in sections:
            run()
            sys.stdout.write(f"redis-py {redis.__version__}: {name} ok\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
