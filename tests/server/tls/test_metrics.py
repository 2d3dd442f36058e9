"""The metrics page over TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from riverbed.server.prometheus.http import MAX_CONNECTIONS
from tests.support.certificates import Certificates
from tests.support.raw import RawClient
from tests.support.servers import free_port
from tests.support.tls import Start, client_context
from tests.support.waiting import until


def page(port: int, context: ssl.SSLContext, path: str = "metrics") -> bytes:
    with urllib.request.urlopen(f"https://localhost:{port}/{path}", context=context, timeout=60) as answer:
        return bytes(answer.read())


def test_the_page_is_read_over_tls_by_clients_with_a_certificate(start_tls: Start, certificates: Certificates) -> None:
    port = free_port()
    start_tls(metrics_port=port, metrics_tls="yes")
    own = client_context(certificates, certificates.client)
    for _ in range(20):
        assert b"# TYPE" in page(port, own)
    assert page(port, own, "healthz") == b"ok\n"
    with pytest.raises((urllib.error.URLError, OSError)):
        page(port, client_context(certificates))
    with RawClient(port) as plain:
        plain.send_bytes(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert plain.rest_until_closed() == b""


def test_handshakes_of_the_page_use_up_no_descriptors(start_tls: Start, certificates: Certificates) -> None:
    port = free_port()
    server = start_tls(metrics_port=port, metrics_tls="yes", tls_auth_clients="no")
    descriptors = Path(f"/proc/{server.pid}/fd")
    before = len(list(descriptors.iterdir()))
    with contextlib.ExitStack() as held:
        for _ in range(50):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        until(lambda: len(list(descriptors.iterdir())) <= before + MAX_CONNECTIONS, "few connections")
        assert page(port, client_context(certificates), "healthz") == b"ok\n"
