"""Keys and names of clients, which are any bytes, as text for people."""

from __future__ import annotations

import contextlib
from typing import Final

_ESCAPES: Final = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x5C: "\\\\"}


def key_text(data: bytes) -> str:
    """One printable line: text where it is text, `\\xHH` where it is not.  Different keys have different texts."""
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable() and "\\" not in text:
            return text
    return "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data)
