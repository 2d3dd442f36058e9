"""CLIENT LIST and CLIENT ID as tests of CLIENT read them: who is there and in which state."""

from __future__ import annotations

from tests.support.raw import Node, RawClient


def id_of(client: RawClient) -> int:
    return int(client.tree("CLIENT", "ID").text)


def lines(reply: Node) -> list[dict[str, str]]:
    """CLIENT LIST as dictionaries."""
    return [dict(field.split("=", 1) for field in line.split(" ")) for line in reply.text.decode().splitlines()]


def own_line(client: RawClient) -> dict[str, str]:
    (line,) = lines(client.tree("CLIENT", "INFO"))
    return line
