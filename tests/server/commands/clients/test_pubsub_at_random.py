"""Random subscriptions and messages of several clients, beside redis-server.

After each step every client sends PING, so what it was sent in that step is known: it must be the same from both
servers.  Redis walks hash tables where we keep order, so the order within a step is not compared here; and in RESP3 one
that publishes to itself hears of it on the other side of the reply (see test_pubsub.py).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.conftest import base_seed
from tests.support.raw import Node, RawClient, parse
from tests.support.servers import RedisServer, RiverbedServer

STEPS = 300
NAMES = ("a", "ab", "b", "*", "a*", "?", "[ab]", "")
RESPS = (2, 2, 3, 3)


def step(chance: random.Random) -> list[str]:
    """A command as words."""
    names = [chance.choice(NAMES) for _ in range(chance.randrange(4))]
    some = names or ["a"]
    kind = chance.choice(("", "", "p", "p", "s"))
    match chance.randrange(14):
        case 0 | 1 | 2 | 3:
            return [f"{kind}subscribe", *some]
        case 4 | 5:
            return [f"{kind}unsubscribe", *names]
        case 6 | 7 | 8 | 9:
            return [chance.choice(("publish", "publish", "spublish")), some[0], f"text-{chance.randrange(100)}"]
        case 10:
            return ["pubsub", chance.choice(("numpat", "numpat", "numsub", "shardnumsub")), *names]
        case 11:
            return ["pubsub", chance.choice(("channels", "shardchannels")), *names[:1]]
        case 12:
            return ["ping", *names]
        case _:
            return ["reset"] if chance.random() < 0.3 else ["xlen", "nothing"]


def sent_in_step(client: RawClient, tag: bytes) -> list[Node]:
    """What the client is sent until its PING comes back."""
    client.send("PING", tag)
    frames = []
    while tag not in (frame := client.reply()):
        frames.append(parse(frame))
    return frames


def without_order(frames: list[Node]) -> tuple[Counter[Node | tuple[bytes, bytes]], list[bytes]]:
    """The frames; names and counts of confirmations apart, as counts go with the place, not with the name."""
    found: Counter[Node | tuple[bytes, bytes]] = Counter()
    counts = []
    for frame in frames:
        words = frame.children or ()
        if len(words) == 3 and words[0].text.endswith(b"unsubscribe"):
            found[words[0].text, words[1].text] += 1
            counts.append(words[2].text)
        elif frame.kind in "*~" and words and all(word.kind == "$" for word in words):
            found[Node(frame.kind, b"", tuple(sorted(words, key=str)))] += 1
        else:
            found[frame] += 1
    return found, counts


@pytest.mark.parametrize("number", range(4))
def test_random_steps_send_everybody_the_same(server: RiverbedServer, oracle: RedisServer, number: int) -> None:
    seed = base_seed() * 1000 + number
    chance = random.Random(seed)
    both = [[subject.client() for _ in RESPS] for subject in (server, oracle)]
    resps = list(RESPS)
    for clients in both:
        for client, resp in zip(clients, resps, strict=True):
            client.ask("HELLO", resp)
    script = []
    for count in range(STEPS):
        who, words = chance.randrange(len(RESPS)), step(chance)
        script.append((who, *words))
        heard = []
        for clients in both:
            clients[who].send(*words)
            asked_first = sent_in_step(clients[who], b"tag-%d" % count)
            others = [sent_in_step(client, b"tag-%d" % count) for n, client in enumerate(clients) if n != who]
            heard.append([without_order(frames) for frames in (asked_first, *others)])
        assert heard[0] == heard[1], (seed, resps, script[-20:])
    for clients in both:
        for client in clients:
            client.close()
