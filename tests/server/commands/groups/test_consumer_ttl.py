"""XGROUP POLICY CONSUMERTTL: consumers that stay away are forgotten, and looking for them costs next to nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from riverbed.store.databases import consumer_ttl
from tests.support.in_process import Product
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true
from tests.support.workers import consumers, fill


def test_a_consumer_not_seen_for_so_long_with_nothing_pending_is_deleted(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    product.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    product.sweep()
    product.clock.now_ms += 999
    product.run("XREADGROUP", "GROUP", "g", "Busy", "STREAMS", "s", ">")
    product.sweep()
    assert consumers(product) == ["Alice", "Busy", "Idle"]
    product.clock.now_ms += 1
    product.sweep()
    assert consumers(product) == ["Alice", "Busy"]
    product.clock.now_ms += 999
    product.sweep()
    assert consumers(product) == ["Alice"]
    product.replay()
    assert consumers(product) == ["Alice"]


def test_a_consumer_stays_while_it_has_something_pending(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    product.clock.now_ms += 50_000
    product.sweep()
    assert consumers(product) == ["Alice"]
    product.run("XACK", "s", "g", "1-0")
    product.clock.now_ms += consumer_ttl.LOOK_AGAIN_MS
    product.sweep()
    assert consumers(product) == []


def test_who_is_due_is_known_after_a_restart(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    product.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    product.sweep()
    for accident in (product.restart, product.kill, product.replay):
        product.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
        accident()
        product.sweep()
        assert consumers(product) == ["Alice", "Idle"]
        product.clock.now_ms += 1000
        product.sweep()
        assert consumers(product) == ["Alice"]


def test_a_policy_that_is_turned_off_deletes_nobody(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    product.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    product.sweep()
    product.run("XGROUP", "POLICY", "s", "g", "CONSUMERTTL", "OFF")
    product.clock.now_ms += 10**9
    product.sweep()
    assert consumers(product) == ["Alice", "Idle"]


def test_it_holds_wherever_the_stream_goes(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    product.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    product.sweep()
    product.run("RENAME", "s", "t")
    product.run("MOVE", "t", 3)
    product.run("SELECT", 3)
    product.run("COPY", "t", "s")
    product.run("SWAPDB", 3, 4)
    product.run("SELECT", 4)
    product.clock.now_ms += 1000
    product.sweep()
    assert consumers(product) == ["Alice"]
    product.run("RENAME", "t", "s")
    assert consumers(product) == ["Alice"]


def looks(product: Product) -> int:
    """How many groups a sweep looks at."""
    asked: list[bool] = []
    consumer_ttl.sweep(product.engine.txn, product.clock.now_ms, lambda: bool(asked.append(True)), lambda group: ())
    product.engine.commit(product.clock.now_ms)
    return len(asked)


def test_only_groups_with_a_policy_are_looked_at_and_only_when_somebody_may_be_due(product: Product) -> None:
    fill(product, 1)
    for number in range(100):
        product.run("XGROUP", "CREATE", "s", f"g{number}", "0")
        product.run("XGROUP", "CREATECONSUMER", "s", f"g{number}", "Idle")
    for number in range(5):
        product.run("XGROUP", "POLICY", "s", f"g{number}", "CONSUMERTTL", 60_000)
    assert looks(product) == 5
    product.clock.now_ms += 59_999
    assert looks(product) == 0
    product.run("XGROUP", "DESTROY", "s", "g0")
    product.clock.now_ms += 1
    assert looks(product) == 4 + 4  # each deletion is followed by a look at the clock as well
    assert looks(product) == 0


@pytest.mark.parametrize(
    "removal", [("DEL", "s"), ("FLUSHALL",), ("RENAME", "other", "s"), ("XGROUP", "DESTROY", "s", "g")]
)
def test_nothing_is_left_of_groups_that_are_gone(product: Product, removal: tuple[str, ...]) -> None:
    product.run("XADD", "other", "1-0", "f", "v")
    fill(product, 1, "CONSUMERTTL", 1000)
    product.sweep()
    product.run(*removal)
    product.clock.now_ms += consumer_ttl.LOOK_AGAIN_MS
    product.sweep()
    assert listed(product) == 0


def listed(product: Product) -> int:
    """How many groups are to be looked at some time."""
    txn = product.engine.txn
    return int(txn.lmdb.stat(txn.handles["consumer_ttls"])["entries"])


def test_a_replica_keeps_nothing_of_groups_that_are_gone_and_leaves_consumers_to_its_primary(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    product.run("XGROUP", "CREATECONSUMER", "s", "g", "Idle")
    for number in range(3):
        product.run("XGROUP", "CREATE", f"gone{number}", "g", "0", "MKSTREAM")
        product.run("XGROUP", "POLICY", f"gone{number}", "g", "CONSUMERTTL", 1000)
        product.run("DEL", f"gone{number}")
    product.engine.set_role(is_replica=True)
    for _ in range(2):
        product.sweep()
        assert listed(product) == 1
        product.clock.now_ms += 1000
    assert consumers(product) == ["Alice", "Idle"]
    product.engine.set_role(is_replica=False)
    product.sweep()
    assert consumers(product) == ["Alice"]


def test_no_look_is_more_than_a_day_away(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", (1 << 63) - 1)
    assert looks(product) == 1
    product.clock.now_ms += consumer_ttl.MAX_AHEAD_MS - 1
    assert looks(product) == 0
    product.clock.now_ms += 1
    assert looks(product) == 1


def test_a_sweep_ends_when_its_time_is_up_and_goes_on_where_it_was(product: Product) -> None:
    fill(product, 1, "CONSUMERTTL", 1000)
    for number in range(30):
        product.run("XGROUP", "CREATECONSUMER", "s", "g", f"Idle{number}")
    product.sweep()
    product.clock.now_ms += 1000
    for left in range(29, -1, -1):
        consumer_ttl.sweep(product.engine.txn, product.clock.now_ms, lambda: True, lambda group: ())
        assert len(consumers(product)) == 1 + left


def test_the_server_sweeps_by_itself_and_logs_what_it_deletes(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", "XGROUP CREATECONSUMER s g Idle")
        await ticks.ask(client, "XGROUP POLICY s g CONSUMERTTL 1000")
        assert await ticks.ask(waiting, "XREADGROUP GROUP g Waiting BLOCK 0 STREAMS s >") == []
        before = len(ticks.batches())
        ticks.clock.now_ms += 2000
        ticks.server.maintenance.start()
        await until_true(lambda: len(ticks.batches()) >= before + 1)
        # a consumer that waits in a blocking read is not idle
        assert ticks.batches()[before:] == [[b"XGROUP DELCONSUMER s g Idle"]]
        waiting.leave()
        ticks.clock.now_ms += consumer_ttl.LOOK_AGAIN_MS
        await until_true(lambda: len(ticks.batches()) >= before + 2)
        assert ticks.batches()[before + 1 :] == [[b"XGROUP DELCONSUMER s g Waiting"]]
        ticks.close()

    in_loop(body())
