"""Run one script on two servers and compare every byte of every reply, but for what `differences.py` names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from tests.support.raw import Node, RawClient, parse, quote
from tests.support.scripts.differences import DIFFERENCES, MASKS, Difference, Rule, Words, normalise
from tests.support.scripts.generators import CONNECTIONS, Step
from tests.support.servers import Server

# In a script: kill the second server and start it again.  All connections begin again, on both servers.
KILL_STEP: Final = Step(-1, (b"KILL",))


@dataclass(frozen=True)
class Mismatch:
    """Where two servers disagree: the step's number, its words and what each replied (None: no reply at all)."""

    number: int
    words: Words
    replies: tuple[bytes | None, bytes | None]
    names: tuple[str, str]

    def __str__(self) -> str:
        lines = [f"at command {self.number}: {' '.join(map(quote, self.words))}"]
        for name, reply in zip(self.names, self.replies, strict=True):
            lines.append(f"  {name:16} {'(no reply)' if reply is None else repr(reply[:1500])}")
        if None not in self.replies:
            nodes = [parse(reply) for reply in self.replies if reply is not None]
            lines.append(f"  first difference: {_first_difference(nodes[0], nodes[1])}")
        return "\n".join(lines)


def _first_difference(one: Node, other: Node) -> str:
    """The smallest part in which two replies differ, for people."""
    if one.children is not None and other.children is not None and one.kind == other.kind:
        last = None
        for mine, theirs in zip(one.children, other.children, strict=False):
            if mine != theirs:
                return (f"after {last}: " if last is not None else "") + _first_difference(mine, theirs)
            last = mine
    return f"{str(one)[:300]} against {str(other)[:300]}"


@dataclass
class _Lane:
    """One connection number: its socket on each server, and the words queued since MULTI."""

    clients: tuple[RawClient, RawClient]
    queued: list[Words] | None = None
    repair: list[Words] = field(default_factory=list)


def _expect_ok(server: Server, reply: bytes) -> None:
    assert reply.startswith((b"+", b":")), f"{server.name}: {reply!r}"


class Pair:
    """Two servers that get the same script.  `protocols` are what each connection number speaks."""

    def __init__(self, first: Server, second: Server, *, rules: Sequence[Rule] | None = None) -> None:
        self.servers = (first, second)
        self.rules = tuple(MASKS.values()) + tuple(DIFFERENCES.values()) if rules is None else tuple(rules)
        self.commands_run = 0

    def reset(self, node_entries: int) -> None:
        """Empty both stores and give them the same stream nodes, on which `~` depends."""
        for server in self.servers:
            if server.process is None or server.process.poll() is not None:
                server.kill()  # the last script ended it; the next one, perhaps a shorter one, shall find it running
                server.start()
            with server.client() as client:
                for words in (
                    ("FLUSHALL",),
                    ("CONFIG", "SET", "stream-node-max-bytes", 0),
                    ("CONFIG", "SET", "stream-node-max-entries", node_entries),
                ):
                    _expect_ok(server, client.ask(*words))

    def run(
        self, script: Sequence[Step], *, node_entries: int = 5, protocols: Sequence[int] = (2, 3, 2)
    ) -> Mismatch | None:
        """Run the script on empty stores; the first step on which the replies differ, or None.

        Steps in a row on one connection are pipelined.  Ends by comparing everything that is stored.
        """
        self.reset(node_entries)
        stack = ExitStack()
        try:
            lanes = self._connect(stack)
            if mismatch := self._greet(lanes, protocols):
                return mismatch
            for number, connection, batch in _batches(script):
                if connection == KILL_STEP.connection:
                    stack.close()
                    self._kill_second()
                    lanes = self._connect(stack)
                    mismatch = self._greet(lanes, protocols)
                else:
                    mismatch = self._run_batch(lanes[connection], number, batch)
                if mismatch is not None:
                    return mismatch
            stack.close()
            return self._compare_stores(self._connect(stack)[0], len(script))
        finally:
            stack.close()

    def _connect(self, stack: ExitStack) -> list[_Lane]:
        lanes = []
        for _ in range(CONNECTIONS):
            one, other = (stack.enter_context(server.client(timeout_s=120)) for server in self.servers)
            lanes.append(_Lane((one, other)))
        return lanes

    def _greet(self, lanes: Sequence[_Lane], protocols: Sequence[int]) -> Mismatch | None:
        for lane, protocol in zip(lanes, protocols, strict=True):
            if protocol == 3 and (mismatch := self._run_batch(lane, -1, [(b"HELLO", b"3")])):
                return mismatch
        return None

    def _kill_second(self) -> None:
        """SIGKILL our server and start it again; the other one goes on, and only its connections end.

        The settings of stream nodes are given at the start: the log's tail is executed before a client could set them.
        """
        ours = self.servers[1]
        settings = ("stream-node-max-entries", "stream-node-max-bytes")
        with ours.client() as client:
            for name in settings:
                ours.options[name] = (client.tree("CONFIG", "GET", name).children or ())[1].text.decode()
        ours.kill()
        ours.start()
        for name in settings:
            del ours.options[name]

    def _run_batch(self, lane: _Lane, number: int, batch: Sequence[Words]) -> Mismatch | None:
        for client in lane.clients:
            try:
                client.send_bytes(b"".join(_encoded(words) for words in batch))
            except ConnectionError:
                pass  # reading its reply tells which one
        for offset, words in enumerate(batch):
            replies = (_reply(lane.clients[0]), _reply(lane.clients[1]))
            self.commands_run += 1
            if not self._agree(lane, words, replies):
                return Mismatch(number + offset, words, replies, (self.servers[0].name, self.servers[1].name))
        return self._repair(lane, number)

    def _agree(self, lane: _Lane, words: Words, replies: tuple[bytes | None, bytes | None]) -> bool:
        """Whether the replies to `words` are the same up to the rules; follows MULTI and EXEC on the way."""
        first, second = replies
        if first is None or second is None:
            return first is second
        name = words[0].upper()
        executed = lane.queued
        if first == b"+QUEUED\r\n" and lane.queued is not None:
            lane.queued.append(words)
        elif name == b"MULTI" and first == b"+OK\r\n":
            lane.queued = []
        elif name in (b"EXEC", b"DISCARD", b"RESET") and not first.startswith(b"-ERR"):
            lane.queued = None
        if first == second:
            return True
        nodes = (parse(first), parse(second))
        if name == b"EXEC" and executed is not None and all(node.children is not None for node in nodes):
            return self._same_results(lane, executed, *nodes)
        return self._same(lane, words, *nodes)

    def _same_results(self, lane: _Lane, executed: Sequence[Words], one: Node, other: Node) -> bool:
        """The results of a transaction, each by the rules of its own command."""
        if one.children is None or other.children is None or len(one.children) != len(other.children):
            return False
        for words, mine, theirs in zip(executed, one.children, other.children, strict=True):
            if not self._same(lane, words, mine, theirs):
                return False
            if lane.repair:  # the rest of the transaction ran on different states
                lane.repair = [(b"FLUSHALL",)]
                return True
        return True

    def _same(self, lane: _Lane, words: Words, one: Node, other: Node) -> bool:
        if one == other:
            return True
        differences = [rule for rule in self.rules if isinstance(rule, Difference) and rule.applies(words)]
        excuse = next((rule for rule in differences if rule.excuses(words, other)), None)
        if excuse is not None and excuse.changes_state:
            # Which of the two did it does not matter: afterwards the key is gone on both.
            lane.repair = [(b"DEL", words[1])]
        return excuse is not None or normalise(words, one, self.rules) == normalise(words, other, self.rules)

    def _repair(self, lane: _Lane, number: int) -> Mismatch | None:
        """Undo a named difference in the state, so that the rest of the script can be compared."""
        commands, lane.repair = lane.repair, []
        return self._run_batch(lane, number, commands) if commands else None

    def _compare_stores(self, lane: _Lane, number: int) -> Mismatch | None:
        for database in (b"0", b"1", b"2"):
            if mismatch := self._run_batch(lane, number, [(b"SELECT", database), (b"KEYS", b"*")]):
                return mismatch
            keys = parse(lane.clients[0].ask("KEYS", "*")).children or ()
            looks: list[Words] = []
            for key in sorted(node.text for node in keys):
                looks.append((b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"))
                looks.append((b"PEXPIRETIME", key))
            if mismatch := self._run_batch(lane, number, looks):
                return mismatch
        return None


def _encoded(words: Words) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _reply(client: RawClient) -> bytes | None:
    try:
        return client.reply()
    except (ConnectionError, TimeoutError):
        return None


# After these nothing may follow in the same pipeline: a difference that changes state is repaired before the next step.
_ALONE: Final = frozenset((b"XSETID", b"EXEC"))


def _batches(script: Sequence[Step]) -> Iterator[tuple[int, int, list[Words]]]:
    """Runs of steps on one connection, with the number of their first step."""
    batch: list[Words] = []
    for number, step in enumerate(script):
        batch.append(step.words)
        is_last = number + 1 == len(script) or script[number + 1].connection != step.connection
        if is_last or step.words[0].upper() in _ALONE:
            yield number + 1 - len(batch), step.connection, batch
            batch = []
