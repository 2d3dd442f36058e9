"""Reads a command's syntax line into the arguments that COMMAND DOCS lists.

The line is written as on the public command pages:

    key [NX | XX] <MAXLEN | MINID> [= | ~] threshold [LIMIT count] field value [field value ...]

    word            an argument the client fills in
    WORD  =  ~  *   a token, sent as it stands: any word without a small letter
    [ ... ]         may be left out
    < a | b >       one of them
    x [x ...]       x, any number of times but at least once

The result describes the line and no more: it does not check commands, their handlers do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

_TOKENS = re.compile(r"[\[\]<>|]|\.\.\.|[^\s\[\]<>|]+")
_ELLIPSIS: Final = "..."
_CLOSING: Final = {"[": "]", "<": ">"}

_OPTIONAL_WORDS = re.compile(r"\[[^\[\]]*\]")
_CHOICE = re.compile(r"<([^<>]*)>")

KEY_NAMES: Final = frozenset(("key", "newkey", "source", "destination"))
INTEGER_NAMES: Final = frozenset(
    (
        *("count", "cursor", "db", "destination-db", "index", "index1", "index2", "limit", "milliseconds"),
        *("min-idle-time", "ms", "numids", "port", "protover", "seconds", "timeout"),
        *("unix-time-milliseconds", "unix-time-seconds"),
    )
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument.

    `kind` is key, integer, pattern, string, pure-token, oneof or block; the last two have `arguments`.  `token` is
    the word that announces it.
    """

    name: str
    kind: str
    token: str = ""
    optional: bool = False
    multiple: bool = False
    arguments: tuple[Argument, ...] = ()


def parse_syntax(syntax: str) -> tuple[Argument, ...]:
    """The arguments of a syntax line.  A line that is not well-formed is a bug in the command's declaration."""
    tokens = _TOKENS.findall(syntax)
    choices, end = _parse_choices(tokens, 0, "")
    assert end == len(tokens), syntax
    assert len(choices) == 1, syntax
    return choices[0]


def _parse_choices(tokens: list[str], position: int, closing: str) -> tuple[list[tuple[Argument, ...]], int]:
    """Sequences separated by `|`, up to the bracket `closing`; -> them and the position after it."""
    choices = []
    while True:
        sequence, position = _parse_sequence(tokens, position)
        choices.append(sequence)
        if position == len(tokens):
            assert not closing, "a bracket that is not closed"
            return choices, position
        if tokens[position] != "|":
            assert tokens[position] == closing, "a bracket that was not opened"
            return choices, position + 1
        position += 1


def _parse_sequence(tokens: list[str], position: int) -> tuple[tuple[Argument, ...], int]:
    arguments: list[Argument] = []
    while position < len(tokens) and tokens[position] not in "|]>":
        token = tokens[position]
        if token in _CLOSING:
            repeated = _repetition(tokens, position)
            if repeated:
                _repeat(arguments, parse_syntax(" ".join(repeated)))
                position += len(repeated) + 3
                continue
            choices, position = _parse_choices(tokens, position + 1, _CLOSING[token])
            arguments.append(replace(_one_of(choices), optional=token == "["))
        else:
            arguments.append(_word(token))
            position += 1
    return tuple(arguments), position


def _repetition(tokens: list[str], position: int) -> list[str]:
    """The words of a `[words ...]` that begins at `position`; empty when that is something else."""
    words: list[str] = []
    for token in tokens[position + 1 :]:
        if token == _ELLIPSIS:
            return words
        if token in ("[", "]", "<", ">", "|"):
            break
        words.append(token)
    return []


def _repeat(arguments: list[Argument], repeated: tuple[Argument, ...]) -> None:
    """Make the last of `arguments`, which must be `repeated`, one that may come several times."""
    count = len(repeated)
    assert tuple(arguments[-count:]) == repeated, "what is repeated must stand before it"
    arguments[-count:] = [replace(_block(repeated), multiple=True)]


def _word(word: str) -> Argument:
    if word == word.upper():
        return Argument(word.lower(), "pure-token", token=word)
    if word in KEY_NAMES:
        kind = "key"
    elif word in INTEGER_NAMES:
        kind = "integer"
    else:
        kind = "pattern" if word == "pattern" else "string"
    return Argument(word, kind)


def _one_of(choices: list[tuple[Argument, ...]]) -> Argument:
    members = tuple(_block(choice) for choice in choices)
    if len(members) == 1:
        return members[0]
    return Argument("-or-".join(member.name for member in members), "oneof", arguments=members)


def _block(sequence: tuple[Argument, ...]) -> Argument:
    """A sequence as one argument; a token in front becomes the token of what follows."""
    first, *rest = sequence
    if not rest:
        return first
    if first.kind == "pure-token":
        only = rest[0]
        if len(rest) == 1 and not (only.token or only.optional or only.multiple):
            return replace(only, token=first.token)
        return Argument(first.name, "block", token=first.token, arguments=tuple(rest))
    return Argument("-".join(argument.name for argument in sequence), "block", arguments=sequence)


def word_count(line: str) -> tuple[int, bool]:
    """The fewest words that `line` allows, and whether it allows no more than these.

    Reads the text and does not parse it: the server does this for every command when it starts.
    """
    is_exact = "[" not in line
    while (shorter := _OPTIONAL_WORDS.sub("", line)) != line:
        line = shorter

    def fewest(choice: re.Match[str]) -> str:
        nonlocal is_exact
        counts = {len(words.split()) for words in choice[1].split("|")}
        is_exact = is_exact and len(counts) == 1
        return " x" * min(counts)

    while (shorter := _CHOICE.sub(fewest, line)) != line:
        line = shorter
    return len(line.split()), is_exact


def key_words(syntax: str) -> tuple[int, bool]:
    """How many keys, or shard channels, `syntax` begins with, and whether it is one that may be repeated."""
    words = [word.lstrip("[") for word in syntax.split()]
    keys = list(takewhile(lambda word: word in KEY_NAMES or word == "shardchannel", words))
    is_repeated = keys[:1] == keys[1:2] != []
    return 1 if is_repeated else len(keys), is_repeated


def format_syntax(arguments: tuple[Argument, ...]) -> str:
    """The line that `arguments` describe, as a client's help shows it."""
    return " ".join(map(_format, arguments))


def _format(argument: Argument) -> str:
    if argument.kind == "oneof":
        text = " | ".join(map(_format, argument.arguments))
        if argument.token:
            text = f"{argument.token} <{text}>"
        elif not argument.optional:
            text = f"<{text}>"
    elif argument.kind == "block":
        text = " ".join(filter(None, (argument.token, format_syntax(argument.arguments))))
    elif argument.kind == "pure-token":
        text = argument.token
    else:
        text = " ".join(filter(None, (argument.token, argument.name)))
    if argument.multiple:
        text = f"{text} [{text} ...]"
    return f"[{text}]" if argument.optional else text
