"""A group with work to do, in a store in this process, for tests of delivery policies."""

from __future__ import annotations

from typing import Any

from tests.support.in_process import Product


def fill(product: Product, count: int = 3, *policy: str | int) -> None:
    """Alice has read the entries 1-0, 2-0 ... of `s`, each of them once."""
    product.run("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in range(1, count + 1):
        product.run("XADD", "s", f"{number}-0", "job", number)
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    if policy:
        product.run("XGROUP", "POLICY", "s", "g", *policy)


def policy(product: Product, key: str = "s") -> list[Any]:
    """The values of the three settings."""
    return list(product.run("XGROUP", "POLICY", key, "g"))[1::2]


def consumers(product: Product) -> list[str]:
    return sorted(fields[1].decode() for fields in product.run("XINFO", "CONSUMERS", "s", "g"))
