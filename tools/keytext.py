"""Keys, names and values of clients, which are any bytes, for people and for JSON."""

from __future__ import annotations

import base64
import contextlib
from typing import Final

_ESCAPES: Final = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x5C: "\\\\"}


def key_values(name: str, data: bytes) -> dict[str, str]:
    """`{name: text}` when `data` is UTF-8, else `{name_base64: ...}`, as in a snapshot's list of streams."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def key_text(data: bytes) -> str:
    """One printable line: text where it is text, `\\xHH` where it is not."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable() and "\\" not in text:
            return text
    return "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data)
