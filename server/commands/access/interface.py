"""What sessions and other parts of a server may know of users; `user.py` and `users.py` have all of it.

The modules there know the table of commands, whose handlers know requests and sessions.  So these know a user by the
few things below.
"""

from __future__ import annotations

import enum
from typing import Protocol


class Login(Protocol):
    """The user that a client has logged in as."""

    name: bytes

    @property
    def is_unlimited(self) -> bool:
        """Whether it may do everything, so that no request need be looked at."""

    @property
    def needs_no_password(self) -> bool: ...

    @property
    def lets_everybody_in(self) -> bool:
        """Whether clients are this user without a password, as `default` may be."""


class Logins(Protocol):
    """The users of a server."""

    sees_all_channels: bool

    @property
    def default(self) -> Login: ...

    def get(self, name: bytes) -> Login | None: ...

    def log_in(self, name: bytes, password: bytes) -> Login | None:
        """The user with that name and password; None when there is none, or when it is off."""

    def require_password(self, password: bytes) -> None:
        """Set the only password of the default user; empty for none."""

    def lines_beyond(self, password: bytes) -> list[bytes]:
        """The lines of a configuration file that make all users; none when `requirepass` with this password does."""


class Reason(enum.Enum):
    """Why a command was refused, in the order in which the reason of several selectors is chosen."""

    COMMAND = 1
    KEY = 2
    AUTH = 3
    CHANNEL = 4
