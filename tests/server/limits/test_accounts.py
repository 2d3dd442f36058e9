"""Bytes that are kept for clients are counted, for each and for all, and decide whose sockets are read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from riverbed.server.commands.replay import NO_PEER
from riverbed.server.limits import accounts
from riverbed.server.limits.accounts import Account, Accounts
from tests.support.raw import encode
from tests.support.ticks import Client, Ticks, in_loop

KB = 1 << 10


class Socket:
    """A peer that remembers whether it is read."""

    def __init__(self) -> None:
        self.is_read = True
        self.is_aborted = False

    address = local_address = "test"
    fd = -1

    def set_reading(self, on: bool) -> None:
        self.is_read = on

    def abort(self) -> None:
        self.is_aborted = True

    close_soon = attend = NO_PEER.close_soon
    read_small_pieces = NO_PEER.read_small_pieces
    output_bytes = NO_PEER.output_bytes


def opened(book: Accounts, *, is_trusted: bool = True) -> tuple[Socket, Account]:
    socket = Socket()
    return socket, Account(book, 1, socket, is_trusted=is_trusted)


def test_the_total_is_the_sum_of_the_accounts_whatever_happens() -> None:
    book = Accounts()
    _, first = opened(book)
    _, second = opened(book, is_trusted=False)
    first.settle(waiting=10, growing=20, other=30)
    second.settle(waiting=1, growing=2, other=3)
    assert (book.clients.bytes, book.strangers.bytes, book.total) == (60, 6, 66)
    second.trust(True)
    first.grow(5)
    assert (book.clients.bytes, book.strangers.bytes, first.owed) == (71, 0, 65)
    first.settle(waiting=0, growing=0, other=1)
    second.trust(False)
    assert (book.clients.bytes, book.strangers.bytes) == (1, 6)
    first.close()
    second.close()
    assert book.total == 0


def test_a_socket_is_not_read_from_its_bound_until_half_of_it() -> None:
    socket, account = opened(Accounts())
    states = []
    for waiting in (64 * KB, 64 * KB + 1, 40 * KB, 32 * KB + 1, 32 * KB, 64 * KB):
        account.settle(waiting=waiting, growing=0, other=0)
        states.append(socket.is_read)
    assert states == [True, False, False, False, True, True]


def test_the_rest_of_a_request_and_unread_replies_keep_no_socket_from_being_read() -> None:
    socket, account = opened(Accounts())
    account.settle(waiting=0, growing=1 << 24, other=1 << 24)
    assert socket.is_read


def test_under_pressure_those_who_owe_most_wait_and_others_are_read() -> None:
    book = Accounts()
    pressure: list[bool] = []
    book.clients.on_pressure = pressure.append
    big, small = opened(book), opened(book)
    _, unread = opened(book)
    for socket, account in (big, small):
        account.settle(waiting=5 * KB if socket is big[0] else KB, growing=0, other=0)
    unread.settle(waiting=0, growing=0, other=accounts.CLIENTS_BYTES // 2)
    assert pressure == [True]
    big[1].settle(waiting=5 * KB, growing=0, other=0)
    small[1].settle(waiting=KB, growing=0, other=0)
    assert (big[0].is_read, small[0].is_read) == (False, True)
    assert book.clients.most_output < accounts.MAX_OUTPUT_A_TICK
    unread.settle(waiting=0, growing=0, other=accounts.CLIENTS_BYTES // 3)
    assert pressure == [True]
    unread.close()
    assert pressure == [True, False]


def test_strangers_are_bounded_tightly_and_apart_from_the_others() -> None:
    book = Accounts()
    socket, account = opened(book, is_trusted=False)
    account.settle(waiting=5 * KB, growing=0, other=0)
    assert not socket.is_read
    account.trust(True)
    assert socket.is_read
    _, stranger = opened(book, is_trusted=False)
    stranger.settle(waiting=0, growing=0, other=accounts.CLIENTS_BYTES)
    assert not book.clients.is_pressed


def test_in_a_full_pool_large_requests_get_on_one_after_the_other() -> None:
    book = Accounts()
    large = [opened(book) for _ in range(3)]
    for _, account in large:
        account.settle(waiting=0, growing=accounts.CLIENTS_BYTES // 2, other=0)
    assert [socket.is_read for socket, _ in large] == [True, True, True]  # the third one filled it
    large.insert(0, large.pop())
    for _, account in large:
        account.settle(waiting=0, growing=accounts.CLIENTS_BYTES // 2 + KB, other=0)
    assert [socket.is_read for socket, _ in large] == [True, False, False]
    tiny, account = opened(book)
    account.settle(waiting=0, growing=KB, other=0)
    assert tiny.is_read
    large[0][1].settle(waiting=0, growing=0, other=accounts.CLIENTS_BYTES)  # its reply
    assert [socket.is_read for socket, _ in large] == [True, True, False]
    large[1][1].close()
    assert large[2][0].is_read


def test_a_large_request_that_does_not_get_on_ends_when_others_wait() -> None:
    book = Accounts()
    holder, second = opened(book), opened(book)
    holder[1].settle(waiting=0, growing=accounts.CLIENTS_BYTES + 1, other=0)
    book.check_growing(1000.0)
    book.check_growing(2000.0)
    assert not holder[0].is_aborted  # nobody waits for it
    second[1].settle(waiting=0, growing=100 * KB, other=0)
    book.check_growing(2000.0 + accounts.STUCK_S)
    assert not holder[0].is_aborted
    holder[1].settle(waiting=0, growing=accounts.CLIENTS_BYTES + 2, other=0)
    book.check_growing(3000.0)
    book.check_growing(3000.0 + accounts.STUCK_S)
    assert not holder[0].is_aborted
    book.check_growing(3000.0 + accounts.STUCK_S + 1)
    assert holder[0].is_aborted
    holder[1].close()
    assert second[0].is_read


# -- in an executor ----------------------------------------------------------------------------------------------------


def owed(client: Client) -> int:
    return client.session.account.owed


def test_everything_that_a_client_can_leave_behind_is_counted_and_ends(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        book = ticks.executor.accounts
        blocked, half, queuing, quick = [ticks.connect() for _ in range(4)]
        await ticks.ask(quick, "PING", "XADD s 1-1 f v")
        assert book.total == 0
        blocked.send("XREAD BLOCK 0 STREAMS k $", *["PING"] * 100)
        half.send_bytes(encode(["ECHO", "x" * 1000])[:-10])
        queuing.send("MULTI", *["XLEN s"] * 100)
        await ticks.settle()
        blocked.send_bytes(b"x" * 5000)
        ticks.check_accounts()
        assert owed(blocked) > 5000
        assert owed(half) > 900
        assert owed(queuing) > 1000
        assert book.total == owed(blocked) + owed(half) + owed(queuing)
        half.send_bytes(encode(["ECHO", "x" * 1000])[-10:])
        await ticks.ask(queuing, "EXEC")
        assert (owed(half), owed(queuing)) == (0, 0)
        blocked.leave()
        assert book.total == 0
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("ending", ["EXEC", "DISCARD", "RESET", "leave"])
def test_a_transaction_ends_in_the_accounts_as_well(tmp_path: Path, ending: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "MULTI", "PING", "XLEN s")
        assert owed(client) > 0
        if ending == "leave":
            client.leave()
        else:
            await ticks.ask(client, ending)
        assert ticks.executor.accounts.total == 0
        ticks.close()

    in_loop(body())


def test_messages_kept_behind_a_long_reply_end_with_a_client_that_has_just_sent_something(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(other, *[f"XADD s {number}-1 f {'x' * 300_000}" for number in range(1, 10)])
        await ticks.ask(client, "HELLO 3", "SUBSCRIBE c")
        client.session.congested = True  # so the reply stays under way
        await ticks.ask(client, "XRANGE s - +")
        await ticks.ask(other, f"PUBLISH c {'m' * 5000}")
        assert owed(client) > 5000
        client.send("PING")
        client.leave()
        await ticks.settle()
        assert ticks.executor.accounts.total == 0
        ticks.close()

    in_loop(body())


def test_what_is_not_parsed_costs_its_bytes_and_runs_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        count = 20_000
        client.send_bytes(b"".join(b"ECHO %d\r\n" % number for number in range(count)))
        await asyncio.sleep(0)
        assert len(client.session.backlog) < 2_000  # of a few batches of bounded size one can be left
        assert (await ticks.ask(other, "PING")) == [b"+PONG\r\n"]
        replies: list[bytes] = []
        while len(replies) < count:
            await ticks.settle()
            replies += client.replies()
        assert replies == [b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(count)]
        assert ticks.executor.accounts.total == 0
        ticks.close()

    in_loop(body())


def test_holding_a_pipeline_back_at_each_of_its_commands_stays_linear(tmp_path: Path) -> None:
    """Each command ends its batch, as each XREAD that blocks does: 5,000 of them are begun 5,000 times."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, writer = ticks.connect(), ticks.connect()
        count = 5_000
        client.send_bytes(encode(["XREAD", "BLOCK", "0", "STREAMS", "k", "$"]) * count)
        most = 0
        answered = 0
        for number in range(1, 200):
            writer.send(f"XADD k {number}-1 f v")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            most = max(most, len(client.session.backlog))
            answered += len(client.replies())
        assert answered > 50
        assert most < 500
        client.leave()
        assert ticks.executor.accounts.total == 0
        ticks.close()

    in_loop(body())
