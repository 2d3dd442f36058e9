"""A store with something of everything in it, most of it dead."""

from __future__ import annotations

from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from tests.support.store.stores import Store


def busy(store: Store) -> None:
    """Something of everything, most of it dead."""
    store.fill(b"s", 2000)
    store.deliver(b"s", 400)
    store.deliver(b"s", 30, consumer="Bob")
    store.deliver(b"s", 100, group="other", consumer="Carol")
    store.run("XACK", "s", "g", *(f"{number}-0" for number in range(1, 300)))
    store.run("XNACK", "s", "g", "FAIL", "IDS", 1, "410-0")
    store.run("XGROUP", "DELCONSUMER", "s", "g", "Bob")
    store.run("XADD", "s", "IDMP", "producer", "one", "*", "f", "v")
    trimming.trim(store.fill(b"trimmed", 900), Trim(Strategy.MAXLEN, 50))
    store.fill(b"gone", 700)
    store.db.delete(store.stream(b"gone"))
    store.fill(b"flushed", 300, db=3)
    store.txn.databases[3].flush()
    store.fill(b"t" * 450, 3, db=4)
    store.add(b"large", "1-0", words=(b"f", b"x" * 100_000))
