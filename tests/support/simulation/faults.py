"""What can go wrong, and how it ends again."""

from __future__ import annotations

import asyncio
import errno
import signal
from typing import TYPE_CHECKING

from tests.support.raw import Word
from tests.support.simulation.client import Client, ErrorReply, Lost
from tests.support.simulation.plan import Event

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine
    from tests.support.simulation.run import World


class Faults:
    """Causes the events of a plan."""

    def __init__(self, world: World) -> None:
        self._world = world

    def cause(self, event: Event) -> None:
        world = self._world
        machine = world.machine(event.machine)
        if not machine.is_running:
            return
        world.history.fault(machine.name, event.kind, event.shown)
        match event.kind:
            case "kill":
                machine.kill()
            case "power cut":
                machine.cut_power()
            case "power cut at work":
                machine.cut_power_after(event.number)
            case "power cut after a rewrite":
                world.loop.start(self._command(machine, event))
                world.loop.call_later(event.seconds, self._cut_power, machine, machine.starts)
            case "stop":
                machine.send_signal(event.number)
            case "pause":
                machine.pause(event.seconds)
            case "reset":
                world.network.cut(event.other, machine.name)
            case "partition":
                world.network.part(event.other, machine.name)
                world.loop.call_later(event.seconds, world.network.join, event.other, machine.name)
            case "isolation":
                for other in world.names:
                    if other != machine.name:
                        world.network.part(other, machine.name)
                        world.loop.call_later(event.seconds, world.network.join, other, machine.name)
            case "clock jump":
                machine.clock.ahead_s += event.seconds
            case "child killed":
                for child in list(machine.children.alive):
                    child.end(signal.SIGKILL)
            case "no child":
                machine.children.fails_to_start += 1
            case "command":
                world.loop.start(self._command(machine, event))
            case _:
                self._harm_disk(machine, event)

    def _cut_power(self, machine: Machine, starts: int) -> None:
        if machine.is_running and machine.starts == starts:
            machine.cut_power()

    def _harm_disk(self, machine: Machine, event: Event) -> None:
        disk, loop = machine.disk, self._world.loop
        match event.kind:
            case "disk full":
                disk.free = event.number
                loop.call_later(event.seconds, disk.forgive)
            case "broken disk":
                disk.is_broken = True
                loop.call_later(event.seconds, disk.forgive)
            case "failed operation":
                disk.fail(event.other, errno.EIO if event.number % 2 else errno.ENOSPC)
            case _:
                raise AssertionError(event.kind)

    async def _command(self, machine: Machine, event: Event) -> None:
        """What an operator asks for."""
        world = self._world
        words: list[Word] = list(event.other.split())
        try:
            client = await Client.connect(world.loop, machine.name)
            reply = await client.ask(*words, patience_s=event.seconds)
        except Lost:
            world.history.note(machine.name, f"no answer to {event.other}")
            return
        shown = "an error" if isinstance(reply, ErrorReply) else "what was asked for"  # it names paths
        world.history.note(machine.name, f"answers {event.other} with {shown}")
        client.close()


async def restart_broken(world: World) -> None:
    """As an operator does with a server that refuses writes for good: stop it, and start it again."""
    while True:
        await asyncio.sleep(1.0)
        for machine in world.machines:
            if machine.is_serving and machine.is_broken:
                world.history.note(machine.name, "is stopped, because it takes no writes any more")
                machine.disk.forgive()
                machine.stop()
