"""What comes from outside, which is any bytes: keys and names for people and for JSON, and texts for a terminal."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from riverbed.store.format.text import key_text

_SHORT_BYTES: Final = 60

__all__ = ["key_bytes", "key_text", "key_values", "name_text", "short_text", "shown", "value_text"]


def key_bytes(word: str) -> bytes:
    """A key or pattern as it was typed, whatever the encoding."""
    return word.encode(errors="surrogateescape")


def shown(text: str) -> str:
    """`text` without anything that a terminal would obey, or that cannot be encoded: escapes stand for that."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    if "\udc80" <= letter <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()


def name_text(data: bytes) -> str:
    """`key_text` for a table, or a sentence, in which nothing at all would not be seen."""
    return key_text(data) or "(empty)"


def short_text(data: bytes) -> str:
    """The beginning of a key in a list of examples."""
    text = repr(data[:_SHORT_BYTES])[2:-1]
    return f"{text}..." if len(data) > _SHORT_BYTES else text


def key_values(name: str, data: bytes) -> dict[str, str]:
    """`{name: text}` when `data` is UTF-8, else `{name_base64: ...}`, as in a snapshot's list of streams."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def value_text(values: Mapping[str, Any], name: str) -> str:
    """What `key_values` put there, as `name_text` shows it."""
    coded = values.get(f"{name}_base64")
    return name_text(values[name].encode() if coded is None else base64.b64decode(coded))
