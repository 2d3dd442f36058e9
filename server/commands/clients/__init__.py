"""Commands on the client's own connection: HELLO, CLIENT, MULTI, SUBSCRIBE and their kin."""

from __future__ import annotations
