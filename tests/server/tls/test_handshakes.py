"""Handshakes are bounded: how many have begun, and how long they keep the others waiting."""

from __future__ import annotations

import asyncio
import time

from riverbed.server.tls.handshakes import Handshakes
from tests.support.waiting import until_true


class Peer:
    """A connection whose handshake takes two steps; the second one when the test says so."""

    def __init__(self, handshakes: Handshakes) -> None:
        self.address = "127.0.0.1:1"
        self.steps = 0
        self.is_cut_off = False
        self._handshakes = handshakes
        handshakes.begin(self)
        handshakes.step_soon(self)

    def shake(self) -> None:
        self.steps += 1
        if self.steps == 2:
            self._handshakes.end(self)

    def answer(self) -> None:
        self._handshakes.step_soon(self)

    def give_up(self) -> None:
        self.is_cut_off = True
        self._handshakes.end(self)


def test_a_newcomer_begins_when_a_handshake_has_ended() -> None:
    async def scene() -> None:
        handshakes = Handshakes(time.monotonic, most_begun=2, patience_s=1000)
        peers = [Peer(handshakes) for _ in range(4)]
        await until_true(lambda: [peer.steps for peer in peers] == [1, 1, 0, 0])
        peers[1].answer()
        await until_true(lambda: [peer.steps for peer in peers] == [1, 2, 1, 0])
        peers[0].answer()
        peers[2].answer()
        await until_true(lambda: [peer.steps for peer in peers] == [2, 2, 2, 1])
        assert len(handshakes) == 1
        handshakes.close()
        assert peers[3].is_cut_off
        assert not any(peer.is_cut_off for peer in peers[:3])

    asyncio.run(scene())


def test_handshakes_that_stand_still_are_cut_off_while_others_wait() -> None:
    async def scene() -> None:
        handshakes = Handshakes(time.monotonic, most_begun=3, patience_s=0.01)
        silent = [Peer(handshakes) for _ in range(3)]
        newcomers = [Peer(handshakes) for _ in range(2)]
        await until_true(lambda: all(peer.steps == 1 for peer in newcomers))
        assert [peer.is_cut_off for peer in silent] == [True, True, False]  # no more than was needed
        silent[2].answer()
        await until_true(lambda: silent[2].steps == 2)

    asyncio.run(scene())


def test_newcomers_that_have_left_take_no_place() -> None:
    async def scene() -> None:
        handshakes = Handshakes(time.monotonic, most_begun=1, patience_s=1000)
        first, gone, last = (Peer(handshakes) for _ in range(3))
        await until_true(lambda: first.steps == 1)
        handshakes.end(gone)
        first.answer()
        await until_true(lambda: last.steps == 1)
        assert gone.steps == 0

    asyncio.run(scene())


def test_a_connection_that_is_lost_makes_room_for_a_newcomer() -> None:
    async def scene() -> None:
        handshakes = Handshakes(time.monotonic, most_begun=1, patience_s=1000)
        lost, waiting = (Peer(handshakes) for _ in range(2))
        await until_true(lambda: [peer.steps for peer in (lost, waiting)] == [1, 0])
        handshakes.end(lost)
        await until_true(lambda: waiting.steps == 1)

    asyncio.run(scene())


class BrokenPeer(Peer):
    """One whose handshake meets a defect."""

    def shake(self) -> None:
        raise RuntimeError("a bug")


def test_a_defect_costs_one_handshake_alone() -> None:
    async def scene() -> None:
        errors: list[Exception] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        handshakes = Handshakes(time.monotonic)
        first, broken, last = Peer(handshakes), BrokenPeer(handshakes), Peer(handshakes)
        await until_true(lambda: [peer.steps for peer in (first, last)] == [1, 1])
        assert [peer.is_cut_off for peer in (first, broken, last)] == [False, True, False]
        assert list(map(str, errors)) == ["a bug"]
        handshakes.close()

    asyncio.run(scene())
