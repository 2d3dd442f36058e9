"""When all clients together hold more than maxmemory-clients, those that hold most lose their connections."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from riverbed.server.commands.replay import NO_PEER
from riverbed.server.limits.accounts import Account, Accounts
from riverbed.server.limits.holders import MIN_LIMIT_BYTES
from tests.support.raw import encode
from tests.support.ticks import Client, Ticks, in_loop

KB = 1 << 10


def opened(book: Accounts, size: int, *, is_trusted: bool = True) -> Account:
    account = Account(book, 1, NO_PEER, is_trusted=is_trusted)
    account.add(size)
    return account


def order_of_going(book: Accounts) -> list[Account]:
    gone = []
    for account in book.holders.largest():
        account.add(-account.owed)
        account.close()
        gone.append(account)
    return gone


def test_those_that_hold_most_go_first_and_of_about_as_large_ones_the_oldest() -> None:
    book = Accounts()
    accounts = [opened(book, size * KB) for size in (5, 40, 33, 2, 7, 500)]
    small = opened(book, KB - 1)
    assert order_of_going(book) == [accounts[number] for number in (5, 1, 2, 0, 4, 3)]
    assert book.total == small.bytes == KB - 1


def test_one_that_is_spared_or_follows_the_log_stays() -> None:
    book = Accounts()
    spared, replica, other = (opened(book, 50 * KB) for _ in range(3))
    spared.spare(True)
    replica.follow()
    replica.trust(False)  # as by RESET
    assert (book.total, book.replicas_total) == (100 * KB, 50 * KB)
    assert order_of_going(book) == [other]
    spared.spare(False)
    assert order_of_going(book) == [spared]
    assert (book.total, book.replicas_total) == (0, 50 * KB)


def test_a_client_that_authenticates_counts_once() -> None:
    book = Accounts()
    account = opened(book, 9 * KB, is_trusted=False)
    account.keep(3 * KB)
    account.trust(True)
    assert (book.total, book.clients.bytes, book.strangers.bytes) == (12 * KB, 9 * KB, 0)
    assert order_of_going(book) == [account]
    assert book.total == 0


def test_names_that_are_kept_bring_no_pressure() -> None:
    book = Accounts()
    account = opened(book, 0)
    account.keep(1 << 40)
    assert not book.clients.is_pressed
    assert account.owed == 0  # so its requests take the usual path


def test_the_limit_is_told_of_once_it_is_reached_and_when_it_is_lowered() -> None:
    book = Accounts()
    told: list[int] = []
    book.holders.on_excess = lambda: told.append(book.total)
    account = opened(book, 1 << 40)
    book.holders.set_limit(0)
    assert told == []
    account.add(300 * KB - account.owed)
    book.holders.set_limit(300 * KB + 1)
    assert told == []
    account.add(1)
    assert told == [300 * KB + 1]
    book.holders.set_limit(1)
    assert book.holders.limit_bytes == MIN_LIMIT_BYTES
    assert len(told) == 2


def test_buckets_follow_whatever_changes() -> None:
    book = Accounts()
    chance = random.Random(7)
    accounts = [opened(book, 0) for _ in range(20)]
    for _ in range(5_000):
        account = chance.choice(accounts)
        match chance.randrange(5):
            case 0:
                account.settle(
                    waiting=chance.randrange(9000), growing=0, other=chance.randrange(1 << chance.randrange(20))
                )
            case 1:
                account.keep(chance.randrange(-account.kept, 20 * KB))
            case 2:
                account.spare(chance.random() < 0.3)
            case 3:
                account.trust(chance.random() < 0.5)
            case 4:
                account.close()
        assert book.total == sum(each.bytes for each in accounts)
        assert account.bucket == (0 if account.is_spared else (account.bytes >> 10).bit_length())
    leaving = order_of_going(book)
    assert all(each.is_spared or each in leaving or each.bytes < KB for each in accounts)


# -- in an executor ----------------------------------------------------------------------------------------------------


def of(client: Client) -> Account:
    return client.session.account


HOLDING = {
    "unfinished request": (b"*2\r\n$4\r\nECHO\r\n$40000\r\n" + b"x" * 30_000,),
    "transaction": (encode(["MULTI"]), encode(["ECHO", b"x" * 30_000])),
    "watched key": (encode(["WATCH", b"k" * 30_000]),),
    "watched keys": (encode(["WATCH", *range(200)]),),
    "channel": (encode(["SUBSCRIBE", b"c" * 30_000]),),
    "channels": (encode(["SUBSCRIBE", *range(250)]),),
    "pattern": (encode(["PSUBSCRIBE", b"c" * 15_000]),),
    "patterns": (encode(["PSUBSCRIBE", *range(100)]),),
    "shard channel": (encode(["SSUBSCRIBE", b"c" * 30_000]),),
    "name": (encode(["CLIENT", "SETNAME", b"n" * 30_000]),),
    "name in a greeting": (encode(["HELLO", "3", "SETNAME", b"n" * 30_000]),),
    "library": (encode(["CLIENT", "SETINFO", "LIB-NAME", b"n" * 30_000]),),
    "version of the library": (encode(["CLIENT", "SETINFO", "LIB-VER", b"n" * 30_000]),),
    "key it waits for": (encode(["XREAD", "BLOCK", "0", "STREAMS", b"k" * 30_000, "$"]),),
    "keys it waits for": (encode(["XREAD", "BLOCK", "0", "STREAMS", *range(50), *["$"] * 50]),),
    "request behind one that waits": (
        encode(["XREAD", "BLOCK", "0", "STREAMS", "k", "$"]) + encode(["ECHO", b"x" * 30_000]),
    ),
}


@pytest.mark.parametrize("chunks", HOLDING.values(), ids=HOLDING)
def test_all_that_a_client_has_the_server_keep_counts_and_ends_with_it(
    tmp_path: Path, chunks: tuple[bytes, ...]
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, maxmemory_clients="200kb")
        clients = []
        for _ in range(12):
            clients.append(client := ticks.connect())
            for chunk in chunks:
                client.send_bytes(chunk)
                await ticks.settle()
            assert client.is_closed or of(client).bytes > 28_000
        gone = [client for client in clients if client.is_closed]
        assert clients[:1] == gone[:1]  # the oldest of as large ones
        assert ticks.executor.stats.evicted_clients == len(gone) > 3
        ticks.check_accounts()
        assert ticks.executor.accounts.total < 200 * KB
        assert await ticks.ask(ticks.connect(), "PING") == [b"+PONG\r\n"]
        for client in clients:
            client.leave()  # again, for those that were evicted
        assert ticks.executor.accounts.total == 0
        assert not ticks.executor.context.pubsub.channels
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("WATCH a b a", "UNWATCH"),
        ("WATCH a b", "RESET"),
        ("SUBSCRIBE a b a", "UNSUBSCRIBE"),
        ("SUBSCRIBE a b", "UNSUBSCRIBE b c a"),
        ("PSUBSCRIBE a* b a*", "PUNSUBSCRIBE"),
        ("SSUBSCRIBE a b a", "SUNSUBSCRIBE"),
        ("CLIENT SETNAME me", "RESET"),
    ],
)
def test_names_that_are_forgotten_count_no_longer(tmp_path: Path, begin: str, end: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, begin)
        assert of(client).kept > 1
        ticks.check_accounts()
        await ticks.ask(client, end)
        assert ticks.executor.accounts.total == 0
        ticks.close()

    in_loop(body())


def test_what_an_evicted_client_wrote_is_whole_in_the_log(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, maxmemory_clients="128kb")
        client, other = ticks.connect(), ticks.connect()
        client.send("MULTI", "XADD s 1-1 f v", "XADD s 1-2 f v", "EXEC")
        client.send_words("WATCH", b"k" * 200_000)
        client.send("XADD s 1-3 f v")
        await ticks.settle()
        assert client.is_closed
        length = int((await ticks.ask(other, "XLEN s"))[0][1:])
        assert length in (2, 3)
        logged = [line for batch in ticks.batches() for line in batch if line.startswith(b"XADD")]
        assert len(logged) == length
        ticks.close()

    in_loop(body())


def test_a_client_that_asked_not_to_be_evicted_stays_and_others_go(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, maxmemory_clients="128kb")
        spared, other, monitor = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(spared, "CLIENT NO-EVICT ON")
        await ticks.ask(other, f"CLIENT SETNAME {'n' * 2000}")
        await ticks.ask(monitor, f"CLIENT SETNAME {'n' * 3000}", "MONITOR")
        spared.send_words("WATCH", b"k" * 200_000)
        await ticks.settle()
        assert [spared.is_closed, other.is_closed, monitor.is_closed] == [False, True, True]
        assert ticks.executor.stats.evicted_clients == 2
        await ticks.ask(spared, "CLIENT NO-EVICT OFF")
        third = ticks.connect()
        await ticks.ask(third, f"CLIENT SETNAME {'n' * 2000}")
        assert [spared.is_closed, third.is_closed] == [True, False]
        ticks.close()

    in_loop(body())


def test_without_a_limit_all_stay_and_a_lower_one_does_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, maxmemory_clients="0")
        clients = [ticks.connect() for _ in range(3)]
        for client in clients:
            client.send_words("WATCH", b"k" * 4_000_000)
        await ticks.settle()
        asking = ticks.connect()
        assert await ticks.ask(asking, "CONFIG SET maxmemory-clients 9mb") == [b"+OK\r\n"]
        assert [client.is_closed for client in clients] == [True, False, False]
        assert await ticks.ask(asking, "CONFIG SET maxmemory-clients 1") == [b"+OK\r\n"]
        assert [client.is_closed for client in clients] == [True, True, True]
        assert not asking.is_closed
        ticks.close()

    in_loop(body())


def test_the_log_tells_of_many_evictions_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, maxmemory_clients="128kb")
        for number in range(5):
            client = ticks.connect()
            client.send_words("WATCH", b"k" * (131_000 + number))
            await ticks.settle()
        ticks.server.evictor.report()
        ticks.server.evictor.report()
        spared = ticks.connect()
        await ticks.ask(spared, "CLIENT NO-EVICT ON")
        spared.send_words("WATCH", b"k" * 131_072)
        await ticks.settle()
        ticks.server.evictor.report()
        ticks.close()

    with caplog.at_level(logging.WARNING, "riverbed"):
        in_loop(body())
    lines = [record.getMessage() for record in caplog.records if "maxmemory-clients" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0] == (
        "maxmemory-clients is 131072 bytes, and clients held more: evicted 5 of them, which held 656210 bytes; most, "
        "131244 bytes, was held by client 5 at test"
    )
    assert lines[1].startswith("clients hold 131312 bytes, more than maxmemory-clients, after the eviction of all")
