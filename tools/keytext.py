"""Keys, names and values of clients, which are any bytes, for people and for JSON."""

from __future__ import annotations

import base64

from store.keytext import key_text

__all__ = ["key_text", "key_values"]


def key_values(name: str, data: bytes) -> dict[str, str]:
    """`{name: text}` when `data` is UTF-8, else `{name_base64: ...}`, as in a snapshot's list of streams."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
