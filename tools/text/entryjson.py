"""Entries as lines of JSON, and back: `riverbed dump` writes them, `riverbed load` reads them.

    {"id": "1-1", "fields": {"sensor": "7", "celsius": "21.5"}}       all is UTF-8, and every name comes once
    {"id": "1-1", "pairs": [["a", "1"], ["a", "2"]]}                  a name comes twice
    {"id": "1-1", "pairs_base64": [["/w==", "AA=="]]}                 a name or value is not UTF-8

`load` also takes any other object; its members become the fields.  One that has a member of these names, alone or with
an `id`, is meant as one of these forms, and an error if it is not.  Numbers stay as they are written, and a name that
comes twice in an object is an error, so that nothing is lost silently.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

_FORMS: Final = ("fields", "pairs", "pairs_base64")
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


def encode_entry(entry_id: bytes, words: list[bytes]) -> str:
    """One line, without line end; `words` are names and values in turn."""
    values: dict[str, Any] = {"id": entry_id.decode()}
    try:
        texts = [word.decode() for word in words]
    except UnicodeDecodeError:
        coded = [base64.b64encode(word).decode() for word in words]
        values["pairs_base64"] = list(zip(coded[::2], coded[1::2], strict=True))
        return json_line(values)
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    if 2 * len(fields) == len(texts):
        values["fields"] = fields
    else:
        values["pairs"] = list(zip(texts[::2], texts[1::2], strict=True))
    return json_line(values)


def json_line(values: dict[str, Any]) -> str:
    """As JSON, with escapes for all characters that are not printable; JSON itself requires only some of them."""
    line = _encode(values)
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def decode_entry(line: str | bytes, id_field: str | None = None) -> tuple[bytes | None, list[bytes]]:
    """-> (the ID, or None when the line has none, the words).  ValueError with what is wrong.

    `id_field` names the member that holds the ID, in an object that has none of our forms.
    """
    try:
        values = json.loads(line, parse_float=_Number, parse_int=_Number, object_pairs_hook=_members)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.lower()} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("too deeply nested") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")
    try:
        return _entry(values, id_field)
    except UnicodeEncodeError as error:  # JSON can spell it, and no bytes of a text can
        raise ValueError(f"\\u{ord(error.object[error.start]):04x} without its other half is no character") from None


def _entry(values: dict[str, Any], id_field: str | None) -> tuple[bytes | None, list[bytes]]:
    form = next((name for name in _FORMS if values.keys() <= {"id", name} and name in values), None)
    if form is not None:
        entry_id = values.get("id")
        if entry_id is not None and not isinstance(entry_id, str):
            raise ValueError(f"the id is not a text: {entry_id!r}")
        return entry_id.encode() if entry_id else None, _words(form, values[form])
    return row_words(values, id_field)


@dataclass(frozen=True, slots=True, repr=False)
class _Number:
    """A number as it is written: a price of 1.10 must not become 1.1, and -0 stays; no double holds all digits."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object.  Raises ValueError when a name comes twice, because `json` would drop the first one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return found


def row_words(row: dict[str, Any], id_field: str | None) -> tuple[bytes | None, list[bytes]]:
    """The words of any object: texts unchanged, nulls left out, everything else as JSON."""
    entry_id: bytes | None = None
    if id_field is not None:
        if row.get(id_field) in (None, ""):
            raise ValueError(f"no {id_field}, which is to be the ID")
        entry_id = _value_text(row[id_field]).encode()
    words: list[bytes] = []
    for name, value in row.items():
        if name != id_field and value is not None:
            words += (name.encode(), _value_text(value).encode())
    if not words:
        raise ValueError("no field has a value")
    return entry_id, words


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return _json(value)
    except RecursionError:
        raise ValueError("too deeply nested") from None


def _json(value: Any) -> str:
    """As JSON, with numbers as they were written: a price of 1.10 within a list must not become 1.1 either."""
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join([f"{_encode(name)}: {_json(member)}" for name, member in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return _encode(value)


def _words(form: str, values: Any) -> list[bytes]:
    words: list[bytes] = []
    for name, value in _pairs(form, values):
        if value is None:
            raise ValueError(f"{name} has no value")
        if form == "pairs_base64":
            words += (_from_base64(name), _from_base64(value))
        else:
            words += (name.encode(), _value_text(value).encode())
    if not words:
        raise ValueError("no fields")
    return words


def _pairs(form: str, values: Any) -> Iterable[tuple[str, Any]]:
    """Names and values.  Raises ValueError: two letters, or two members, are no name and value."""
    if form == "fields":
        if not isinstance(values, dict):
            raise ValueError("fields is no object of names and values")
        return values.items()
    if not isinstance(values, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in values
    ):
        raise ValueError(f"{form} is no list of lists, each of a name and a value")
    return values


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise ValueError(f"not base64: {text!r}") from None
