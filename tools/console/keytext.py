"""Text for data from outside, which may be any bytes: keys and names as text and in JSON, text for a terminal."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from riverbed.store.format.text import key_text

_SHORT_BYTES: Final = 60

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt\\]))")
_CONTROLS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\"}

__all__ = [
    "key_bytes",
    "key_text",
    "key_values",
    "name_text",
    "short_text",
    "shown",
    "shown_key_bytes",
    "value_bytes",
    "value_text",
]


def key_bytes(word: str) -> bytes:
    """The bytes of a key or pattern as the user typed it, in any encoding."""
    return word.encode(errors="surrogateescape")


def shown_key_bytes(word: str) -> bytes:
    """The key that `key_text` shows as `word`.  A backslash that begins no escape is itself."""
    return _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)) if found[1] else _CONTROLS[found[2]], key_bytes(word))


def shown(text: str) -> str:
    """`text` with escapes in place of control characters, and of characters that cannot be encoded."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    if "\udc80" <= letter <= "\udcff":  # a byte of a file name that is not UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()


def name_text(data: bytes) -> str:
    """`key_text`, or `(empty)` for an empty key, which would not be visible in a table or sentence."""
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


def value_bytes(values: Mapping[str, Any], name: str) -> bytes:
    """A value that `key_values` stored in `values`; empty for None."""
    coded = values.get(f"{name}_base64")
    return (values[name] or "").encode() if coded is None else base64.b64decode(coded)


def value_text(values: Mapping[str, Any], name: str) -> str:
    """The same as `name_text` shows it."""
    return name_text(value_bytes(values, name))
