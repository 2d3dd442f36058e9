"""WATCH: which clients' transactions break when a key changes.

A client may watch a million keys, and end that by one command, or by an XADD of another client.  To forget them takes
half a second, so they are forgotten bit by bit, and what a client watches behind that is an object of its own.  A
client that watches more keys meanwhile forgets two for each, so that it takes, and is charged for, no more than it may
watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

from riverbed.server.commands.client_state import Watched
from riverbed.server.execution.waiters import Place, add_interest, drop_interests

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.server.limits.accounts import Account
    from riverbed.store.tables.writing.namespace import Namespace

# Watches that end in one step: a quarter of a millisecond.
_KEYS_A_STEP = 500
# Keys that a client forgets for each that it watches.
_SHARE: Final = 2
# The memory that a watched key takes besides its bytes, measured.
WATCH_BYTES: Final = 240


class Watches:
    """The watched keys of one server.

    Nearly every key has one watcher, which is stored without a dict: a client may watch very many keys, and a dict for
    each takes four times as long.
    """

    def __init__(self, leave: Callable[[Iterator[None]], object] = list) -> None:
        """`leave` is called with the steps that forget watches which have ended; it may take some later."""
        self._watchers: dict[Namespace, dict[bytes, Watched | dict[Watched, None]]] = {}
        self._leave = leave

    def __len__(self) -> int:
        """How many keys are watched."""
        return sum(map(len, self._watchers.values()))

    def add(self, session: Session, key: bytes, expire_ms: int = 0, *, is_hidden: bool = False) -> None:
        """`expire_ms` is when the key expires, which breaks the watch; 0 for never.

        `is_hidden`: it had expired when it was watched, so that its deletion changes nothing.
        """
        transaction = session.transaction
        if transaction.watch_broken:
            return  # whatever changes now
        watched = transaction.watched
        if watched is None:
            watched = transaction.watched = Watched(session)
        db = session.db
        own = watched.keys.setdefault(db, {})
        if key in own:
            return
        own[key] = is_hidden
        session.account.keep(len(key) + WATCH_BYTES)
        if transaction.unwatched is not None:
            self._forget_share(session)
        watchers = self._watchers.setdefault(db, {})
        others = watchers.get(key)
        if others is None:
            watchers[key] = watched
        elif isinstance(others, dict):
            others[watched] = None
        else:
            watchers[key] = {others: None, watched: None}
        add_interest((db, key))
        if expire_ms and not 0 < transaction.watch_until_ms < expire_ms:
            transaction.watch_until_ms = expire_ms

    def clear(self, session: Session) -> None:
        """End all watches of the session, also those that are broken."""
        transaction = session.transaction
        watched = transaction.watched
        if watched is not None:
            transaction.watched = watched.session = None
            self._leave(self._forget(watched, session.account))
            if watched.keys:
                watched.before, transaction.unwatched = transaction.unwatched, watched
        transaction.watch_broken = False
        transaction.watch_until_ms = 0

    def _forget(self, watched: Watched, account: Account) -> Iterator[None]:
        """Forget these watches, some in each step."""
        while watched.keys:
            self._forget_some(watched, account, _KEYS_A_STEP)
            if watched.keys:
                yield

    def _forget_share(self, session: Session) -> None:
        transaction = session.transaction
        unwatched = transaction.unwatched
        while unwatched is not None and not unwatched.keys:
            unwatched = transaction.unwatched = unwatched.before
        if unwatched is not None:
            self._forget_some(unwatched, session.account, _SHARE)

    def _forget_some(self, watched: Watched, account: Account, most: int) -> None:
        db, own = next(iter(watched.keys.items()))
        self._end(watched, db, [own.popitem()[0] for _ in range(min(len(own), most))], account)
        if not own:
            del watched.keys[db]

    def _end(self, watched: Watched, db: Namespace, keys: list[bytes], account: Account) -> None:
        watchers = self._watchers[db]
        for key in keys:
            others = watchers[key]
            if isinstance(others, dict) and len(others) > 1:
                del others[watched]
            else:
                del watchers[key]
        drop_interests(db, keys)
        if account.kept:  # not when the client has gone, and its account is closed
            account.keep(-sum(map(len, keys)) - WATCH_BYTES * len(keys))

    def changed(self, place: Place, *, is_removed: bool) -> None:
        """Break the watches of a key that has changed."""
        db, key = place
        watchers = self._watchers.get(db, {}).get(key, ())
        for watched in list(watchers) if isinstance(watchers, (dict, tuple)) else (watchers,):
            session = cast("Session | None", watched.session)
            if session is None:
                continue
            if is_removed and watched.keys[db][key]:
                watched.keys[db][key] = False
                continue
            if not session.closing:  # else it runs no transaction
                self.clear(session)  # as in Redis: no further change matters to it
            session.transaction.watch_broken = True
