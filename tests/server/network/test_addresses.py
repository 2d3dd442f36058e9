"""Addresses that another program has are refused; those that the machine lacks may be left out if they say so."""

from __future__ import annotations

import errno
import runpy
import socket
import sys
from collections.abc import Iterator

import pytest

from riverbed.server.network import addresses as places
from riverbed.server.network.addresses import accept, bind

HERE = "127.0.0.1"
# Of the block for documentation: no machine has it.
ELSEWHERE = "192.0.2.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 at which another program listens."""
    with socket.socket() as other:
        other.bind((HERE, 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("addresses", [(HERE,), (f"-{HERE}",), (f"-{ELSEWHERE}", f"-{HERE}")])
def test_a_port_that_another_program_has_is_an_error_also_where_the_address_may_be_missing(
    taken: int, addresses: tuple[str, ...]
) -> None:
    with pytest.raises(OSError, match=f"{HERE}:{taken}") as caught:
        bind(addresses, taken)
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("missing", [f"-{ELSEWHERE}", "-no.such.host.invalid"])
def test_an_address_that_the_machine_lacks_may_be_left_out_if_it_says_so(missing: str) -> None:
    (sock,) = bind((missing, HERE), 0)
    sock.close()
    with pytest.raises(OSError, match=missing[1:]):
        bind((missing[1:], HERE), 0)


def test_of_two_that_were_bound_to_one_port_the_second_cannot_accept() -> None:
    (first,) = bind((HERE,), 0)
    port = first.getsockname()[1]
    (second,) = bind((HERE,), port)  # the system allows it as long as none accepts
    with first, second:
        accept(first, 100)
        with pytest.raises(OSError, match=f"{HERE}:{port}") as caught:
            accept(second, 100)
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(("platform", "most"), [("linux", 107), ("darwin", 103)])
def test_the_path_of_a_socket_is_as_long_as_the_system_takes(
    platform: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert places.__file__ is not None
    monkeypatch.setattr(sys, "platform", platform)
    assert runpy.run_path(places.__file__)["_MAX_UNIX_PATH_BYTES"] == most
