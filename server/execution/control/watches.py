"""WATCH: which clients' transactions break when a key changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server.execution.waiters import Place, add_interest, drop_interests

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.store.tables.namespace import Namespace

# Watches that end in one step: a quarter of a millisecond.
_KEYS_A_STEP = 500
# The memory that a watched key takes besides its bytes, measured.
WATCH_BYTES: Final = 240


class Watches:
    """The watched keys of one server.

    Nearly every key has one watcher, which is stored without a dict: a client may watch very many keys, and a dict for
    each takes four times as long.
    """

    def __init__(self, leave: Callable[[Iterator[None]], object] = list) -> None:
        """`leave` is called with the steps that end the watches of a client that is closing; it may take some later."""
        self._watchers: dict[Namespace, dict[bytes, Session | dict[Session, None]]] = {}
        self._leave = leave

    def __len__(self) -> int:
        """How many keys are watched."""
        return sum(map(len, self._watchers.values()))

    def add(self, session: Session, key: bytes, expire_ms: int = 0) -> None:
        """`expire_ms` is when the key expires, which breaks the watch; 0 for never."""
        if session.transaction.watch_broken:
            return  # whatever changes now
        db = session.db
        own = session.transaction.watched.setdefault(db, {})
        if key in own:
            return
        own[key] = None
        session.account.keep(len(key) + WATCH_BYTES)
        watchers = self._watchers.setdefault(db, {})
        others = watchers.get(key)
        if others is None:
            watchers[key] = session
        elif isinstance(others, dict):
            others[session] = None
        else:
            watchers[key] = {others: None, session: None}
        add_interest((db, key))
        if expire_ms and not 0 < session.transaction.watch_until_ms < expire_ms:
            session.transaction.watch_until_ms = expire_ms

    def clear(self, session: Session) -> None:
        """End all watches of the session, also those that are broken; very many of one that is closing bit by bit."""
        transaction = session.transaction
        if session.closing:
            self._leave(self._clear_in_steps(session))
        else:
            for db, keys in transaction.watched.items():
                self._end(session, db, keys)
            transaction.watched.clear()
        transaction.watch_broken = False
        transaction.watch_until_ms = 0

    def _clear_in_steps(self, session: Session) -> Iterator[None]:
        watched = session.transaction.watched
        while watched:
            db, own = next(iter(watched.items()))
            self._end(session, db, [own.popitem()[0] for _ in range(min(len(own), _KEYS_A_STEP))])
            if own:
                yield
            else:
                del watched[db]

    def _end(self, session: Session, db: Namespace, keys: Collection[bytes]) -> None:
        watchers = self._watchers[db]
        for key in keys:
            others = watchers[key]
            if isinstance(others, dict) and len(others) > 1:
                del others[session]
            else:
                del watchers[key]
        drop_interests(db, keys)
        if session.account.kept:  # not when the client has gone, and its account is closed
            session.account.keep(-sum(map(len, keys)) - WATCH_BYTES * len(keys))

    def changed(self, place: Place) -> None:
        db, key = place
        watchers = self._watchers.get(db, {}).get(key, ())
        for session in list(watchers) if isinstance(watchers, (dict, tuple)) else (watchers,):
            if not session.closing:  # else it runs no transaction
                self.clear(session)  # as in Redis: no further change matters to it
            session.transaction.watch_broken = True
