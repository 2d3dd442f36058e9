"""Clients over TLS: who is let in, what a connection does at its end, and what strangers at the port cost."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.support.certificates import Authority, Certificates, Pair
from tests.support.raw import RawClient, encode, parse
from tests.support.servers import free_port
from tests.support.tls import Start, TlsClient, TlsRiverbed, client_context, is_served
from tests.support.waiting import until

# -- who is let in -----------------------------------------------------------------------------------------------------


def test_a_client_with_a_certificate_of_the_authority_is_served(start_tls: Start) -> None:
    with start_tls().client() as client:
        assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        assert b"laddr=127.0.0.1:" in client.ask("CLIENT", "LIST")


@pytest.mark.parametrize(("demand", "is_let_in"), [("yes", False), ("optional", True), ("no", True)])
def test_a_client_without_a_certificate_is_let_in_as_tls_auth_clients_says(
    start_tls: Start, certificates: Certificates, demand: str, is_let_in: bool
) -> None:
    server = start_tls(tls_auth_clients="yes")
    with server.client() as client:
        assert client.ask("CONFIG", "SET", "tls-auth-clients", demand) == b"+OK\r\n"
    assert is_served(server, client_context(certificates)) is is_let_in


@pytest.mark.parametrize(("demand", "is_let_in"), [("yes", False), ("optional", False), ("no", True)])
def test_a_certificate_of_another_authority_is_refused_when_it_is_looked_at(
    start_tls: Start, certificates: Certificates, tmp_path: Path, demand: str, is_let_in: bool
) -> None:
    server = start_tls(tls_auth_clients=demand)
    foreign = Authority(tmp_path / "foreign", "other").issue("stranger")
    assert is_served(server, client_context(certificates, foreign)) is is_let_in


def test_versions_and_ciphers_are_those_of_the_settings(start_tls: Start, certificates: Certificates) -> None:
    server = start_tls(tls_auth_clients="no", tls_protocols="TLSv1.2", tls_ciphers="ECDHE-ECDSA-AES128-GCM-SHA256")
    with TlsClient(server.port, client_context(certificates)) as client:
        assert client.ask("PING") == b"+PONG\r\n"
        assert client.tls.version() == "TLSv1.2"
        assert client.tls.cipher() == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", 128)
        assert client.ask("CONFIG", "SET", "tls-protocols", "TLSv1.3", "tls-ciphers", "") == b"+OK\r\n"
        assert client.ask("PING") == b"+PONG\r\n"  # the connection keeps what it began with
    with TlsClient(server.port, client_context(certificates)) as client:
        assert client.ask("PING") == b"+PONG\r\n"
        assert client.tls.version() == "TLSv1.3"


@pytest.mark.parametrize(("caching", "is_resumed"), [("yes", True), ("no", False)])
def test_a_session_is_resumed_when_sessions_are_cached(
    start_tls: Start, certificates: Certificates, caching: str, is_resumed: bool
) -> None:
    server = start_tls(tls_auth_clients="no", tls_session_caching=caching)
    context = client_context(certificates)
    with TlsClient(server.port, context) as client:
        client.ask("PING")
        session = client.tls.session
    plain = socket.create_connection(("127.0.0.1", server.port))
    with context.wrap_socket(plain, server_hostname="localhost", session=session) as again:
        again.sendall(b"PING\r\n")
        assert again.recv(100) == b"+PONG\r\n"
        assert again.session_reused is is_resumed


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_was_begun_without_a_certificate_is_not_resumed_when_one_is_demanded(
    start_tls: Start, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    server = start_tls(tls_auth_clients="no")
    context = client_context(certificates)
    context.maximum_version = version
    with TlsClient(server.port, context) as client:
        client.ask("PING")
        session = client.tls.session
        assert client.ask("CONFIG", "SET", "tls-auth-clients", "yes") == b"+OK\r\n"
        assert client.ask("PING") == b"+PONG\r\n"
    answer = b""
    plain = socket.create_connection(("127.0.0.1", server.port))
    with (
        contextlib.suppress(ConnectionError, ssl.SSLError),
        context.wrap_socket(plain, server_hostname="localhost", session=session) as again,
    ):
        again.sendall(b"PING\r\n")
        answer = again.recv(100)
    assert answer == b""


def test_a_key_may_have_a_password(start_tls: Start, certificates: Certificates) -> None:
    pair = certificates.authority.issue("locked", password="secret")
    server = start_tls(
        tls_auth_clients="no", tls_cert_file=pair.cert, tls_key_file=pair.key, tls_key_file_pass="secret"
    )
    assert is_served(server, client_context(certificates))
    assert "secret" not in server.log_text()


# -- real clients ------------------------------------------------------------------------------------------------------


def test_redis_cli_and_redis_py_speak_to_the_server(start_tls: Start, certificates: Certificates) -> None:
    server = start_tls()
    program = shutil.which("redis-cli")
    assert program is not None
    files = ["--cacert", certificates.authority.cert, "--cert", certificates.client.cert]
    words = ["--tls", *files, "--key", certificates.client.key, "XADD", "s", "1-1", "f", "v"]
    done = subprocess.run([program, "-p", str(server.port), *map(str, words)], capture_output=True, check=True)
    assert done.stdout == b"1-1\n"
    own = {"ssl_certfile": str(certificates.client.cert), "ssl_keyfile": str(certificates.client.key)}
    client = redis.Redis(port=server.port, ssl=True, ssl_ca_certs=str(certificates.authority.cert), **own)
    with client:
        assert client.xrange("s") == [(b"1-1", {b"f": b"v"})]
        client.xgroup_create("s", "g", "0")
        large = {"f": "x" * (1 << 20)}
        ids = [client.xadd("s", large) for _ in range(20)]
        found = client.xreadgroup("g", "c", {"s": ">"}, count=100)
        assert [entry_id for entry_id, _ in found[0][1]] == [b"1-1", *ids]
        assert client.xack("s", "g", *ids) == 20


# -- the life of a connection ------------------------------------------------------------------------------------------


def test_requests_in_records_of_any_size_are_read(start_tls: Start) -> None:
    data = b"".join(encode(["XADD", "s", f"{number}-1", "f", "v" * (number % 500)]) for number in range(1, 3000))
    with start_tls().client() as client:
        for at in range(0, 5000, 7):
            client.send_bytes(data[at : at + 7])
        client.send_bytes(data[5005:])  # 7 does not divide 5000
        for number in range(1, 3000):
            assert client.reply() == b"$%d\r\n%d-1\r\n" % (len(str(number)) + 2, number)


def test_a_client_that_ends_its_side_is_answered_first(start_tls: Start) -> None:
    """With BIOs of its own: a socket's end of TLS reads as well, and fails when there are replies already."""
    server = start_tls()
    context = client_context(server.certificates, server.certificates.client)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.settimeout(60)

        def step(call: Callable[[], object]) -> None:
            """Call until nothing has to be read first."""
            while True:
                try:
                    call()
                    return
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    data = plain.recv(1 << 16)
                    assert data, "closed without an end of TLS"
                    incoming.write(data)

        step(tls.do_handshake)
        for number in range(1, 101):
            tls.write(encode(["XADD", "s", f"{number}-1", "f", "v" * 10_000]))
        tls.write(encode(["XRANGE", "s", "-", "+"]))
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        plain.sendall(outgoing.read())
        rest = bytearray()
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while True:
                step(lambda: rest.extend(tls.read(1 << 16)))
    assert rest.startswith(b"$3\r\n1-1\r\n")
    assert rest.endswith(b"v" * 10_000 + b"\r\n")
    assert len(rest) > 1_000_000


@pytest.mark.parametrize("how", ["end", "socket", "close"])
def test_a_blocked_client_that_leaves_is_noticed(start_tls: Start, how: str) -> None:
    server = start_tls()
    with server.client() as watcher:
        client = server.client()
        assert isinstance(client, TlsClient)
        client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until(lambda: b"blocked_clients:1" in watcher.ask("INFO", "clients"), "a client that waits")
        if how == "end":
            client.end()
        elif how == "socket":
            client.socket.shutdown(socket.SHUT_WR)
        else:
            client.close()
        until(lambda: b"blocked_clients:0" in watcher.ask("INFO", "clients"), "no client that waits")
        until(lambda: len(watcher.tree("CLIENT", "LIST").text.splitlines()) == 1, "one client")
        client.close()


def test_replies_that_are_not_read_are_counted_and_bounded(start_tls: Start) -> None:
    server = start_tls(client_output_buffer_limit="normal 20mb 0 0")
    with server.client() as watcher, contextlib.ExitStack() as held:
        watcher.ask("XADD", "s", "*", "f", "v" * (1 << 20))
        client = held.enter_context(server.client())
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.send("CLIENT", "SETNAME", "slow")
        for _ in range(40):
            client.send("XRANGE", "s", "-", "+")

        def unread() -> int:
            lines = watcher.tree("CLIENT", "LIST").text.decode().splitlines()
            return sum(int(line.partition(" omem=")[2].split()[0]) for line in lines if "name=slow" in line)

        until(lambda: unread() > 0, "replies that wait")
        assert watcher.ask("PING") == b"+PONG\r\n"
        assert server.private_bytes() < 200 << 20
        assert client.reply() == b"+OK\r\n"  # and then they come, every one whole
        whole = [client.reply() for _ in range(40)]
        assert len(set(whole)) == 1


def test_a_subscriber_that_never_reads_is_cut_off(start_tls: Start) -> None:
    server = start_tls(client_output_buffer_limit="pubsub 1mb 0 0")
    with server.client() as publisher, server.client() as subscriber:
        subscriber.ask("SUBSCRIBE", "c")
        for _ in range(200):
            publisher.ask("PUBLISH", "c", "x" * 100_000)
        assert publisher.ask("PUBLISH", "c", "x") == b":0\r\n"


def test_strangers_are_read_in_small_pieces_and_may_authenticate(start_tls: Start) -> None:
    server = start_tls(requirepass="secret", tls_auth_clients="no")
    with TlsClient(server.port, client_context(server.certificates)) as client:
        client.send_bytes(
            encode(["AUTH", "secret"]) + b"".join(encode(["XADD", "s", "*", "f", "v" * 3000]) for _ in range(100))
        )
        assert client.reply() == b"+OK\r\n"
        assert all(client.reply().startswith(b"$") for _ in range(100))
        assert client.ask("XLEN", "s") == b":100\r\n"


def test_a_stop_answers_what_ran_and_ends_every_connection(start_tls: Start) -> None:
    server = start_tls()
    clients = [server.client() for _ in range(20)]
    for client in clients:
        client.send("XADD", "s", "*", "f", "v")
    replies = [client.reply() for client in clients]
    assert all(reply.startswith(b"$") for reply in replies)
    assert server.stop() == 0
    for client in clients:
        assert client.rest_until_closed() == b""
        client.close()


# -- strangers at the port ---------------------------------------------------------------------------------------------


def test_handshakes_count_as_clients_and_are_cut_off_when_they_take_too_long(start_tls: Start) -> None:
    server = start_tls(maxclients=20)
    with server.client() as client, contextlib.ExitStack() as held:
        until(lambda: len(client.tree("CLIENT", "LIST").text.splitlines()) == 1, "one client")
        silent = [held.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(40)]
        until(lambda: b"rejected_connections:21\r\n" in client.ask("INFO", "stats"), "connections that are refused")
        assert b"riverbed_tls_handshakes:19\r\n" in client.ask("INFO", "clients")
        assert client.ask("PING") == b"+PONG\r\n"
        for connection in silent:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""  # without a byte in plain text
        assert b"riverbed_tls_handshakes:0\r\n" in client.ask("INFO", "clients")
        assert is_served(server, client_context(server.certificates, server.certificates.client))
    assert server.log_text().count("TLS handshakes took longer than 10 s") == 1


def test_a_client_without_tls_is_cut_off_with_one_line_in_the_log(start_tls: Start) -> None:
    server = start_tls()
    for _ in range(50):
        with RawClient(server.port) as client:
            client.send("PING")
            assert client.rest_until_closed() == b""
    assert server.log_text().count("did not speak TLS to a port with TLS") == 1
    with server.client() as client:
        assert client.ask("PING") == b"+PONG\r\n"


def test_a_client_with_tls_at_the_plain_port_is_cut_off_with_one_line_in_the_log(start_tls: Start) -> None:
    port = free_port()
    server = start_tls(port=port)
    for _ in range(50):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            TlsClient(port, client_context(server.certificates))
    with RawClient(port) as client:
        assert client.ask("PING") == b"+PONG\r\n"
        assert b"client_query_buffer_limit_disconnections:0\r\n" in client.ask("INFO", "stats")
    assert server.log_text().count("spoke TLS to a port without TLS") == 1


def test_a_handshake_byte_by_byte_is_a_handshake(start_tls: Start) -> None:
    server = start_tls()
    context = client_context(server.certificates, server.certificates.client)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            for byte in outgoing.read():
                plain.sendall(bytes([byte]))
                time.sleep(0.0005)

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                send()
                incoming.write(plain.recv(1 << 16))
        tls.write(encode(["PING"]))
        send()
        while True:
            incoming.write(plain.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                assert tls.read(100) == b"+PONG\r\n"
                break


def test_damaged_records_end_the_connection_and_no_other(start_tls: Start) -> None:
    server = start_tls()
    with server.client() as other:
        for damage in (b"\x17\x03\x03\x00\x20" + bytes(32), b"\x15\x03\x03\xff\xff", bytes(1000)):
            client = server.client()
            assert isinstance(client, TlsClient)
            client.ask("PING")
            raw = socket.socket(fileno=client.tls.detach())
            raw.settimeout(60)
            raw.sendall(damage)
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(1 << 16):
                    pass
            raw.close()
            assert parse(other.ask("ECHO", damage)).text == damage
        until(lambda: len(other.tree("CLIENT", "LIST").text.splitlines()) == 1, "one client")


def test_a_thousand_handshakes_at_once_hold_up_no_client(start_tls: Start) -> None:
    server = start_tls(tls_auth_clients="no")
    hello = client_hello(server)
    with server.client() as client, contextlib.ExitStack() as held:
        connections = [held.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(300)]
        for connection in connections:
            connection.sendall(hello)
        assert client.ask("PING") == b"+PONG\r\n"
        for connection in connections:
            connection.settimeout(60)
            assert connection.recv(1) == b"\x16"


def test_handshakes_that_trickle_take_little_memory(start_tls: Start) -> None:
    """OpenSSL would take 48 kB for each as soon as it has a byte of a record."""
    server = start_tls(tls_auth_clients="no")
    hello = client_hello(server)
    with server.client() as client, contextlib.ExitStack() as held:
        before = server.private_bytes()
        connections = [held.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(200)]
        for sent in (0, 50):
            for connection in connections:
                connection.sendall(hello[sent : sent + 50])
            assert client.ask("PING") == b"+PONG\r\n"
        time.sleep(0.5)  # gives a careless server the time to grow
        assert client.ask("PING") == b"+PONG\r\n"
        assert server.private_bytes() - before < 200 * 16_000
        for connection in connections:
            connection.sendall(hello[100:])
        for connection in connections:
            connection.settimeout(60)
            assert connection.recv(1) == b"\x16"


@pytest.mark.parametrize("first", [4, 1], ids=["whole header", "a byte of it"])
def test_a_hello_that_announces_much_gets_no_memory(start_tls: Start, first: int) -> None:
    """OpenSSL allocates what a message announces, up to 131 kB."""
    server = start_tls(tls_auth_clients="no")
    message = b"\x01" + (131_000).to_bytes(3, "big") + bytes(1000)
    records = [b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in (message[:first], message[first:])]
    with server.client() as client:
        before = server.private_bytes()
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", server.port)) as stranger:
                stranger.settimeout(60)
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(b"".join(records))
                    assert stranger.recv(1 << 16) == b""
        assert client.ask("PING") == b"+PONG\r\n"
        assert server.private_bytes() - before < 10 << 20
    assert "it has more than 16 kB" in server.log_text()


@pytest.mark.parametrize(("count", "is_let_in"), [(10, True), (100, False)])
def test_a_chain_of_certificates_has_a_bound(
    start_tls: Start, certificates: Certificates, tmp_path: Path, count: int, is_let_in: bool
) -> None:
    """Each one costs a millisecond and 4 kB, which its connection keeps."""
    chain = Pair(tmp_path / "chain.crt", certificates.client.key)
    chain.cert.write_text(certificates.client.cert.read_text() + certificates.authority.cert.read_text() * count)
    server = start_tls()
    with server.client() as other:
        assert is_served(server, client_context(certificates, chain)) is is_let_in
        assert other.ask("PING") == b"+PONG\r\n"


def test_requests_right_behind_a_handshake_do_not_count_with_it(start_tls: Start) -> None:
    server = start_tls()
    context = client_context(server.certificates, server.certificates.client)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.settimeout(60)
        for _ in range(10):
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(1 << 16))
        tls.write(encode(["ECHO", "v" * 100_000]))
        plain.sendall(outgoing.read())
        answer = b""
        while len(answer) < 100_011:
            incoming.write(plain.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    answer += tls.read(1 << 16)
    assert answer == b"$100000\r\n" + b"v" * 100_000 + b"\r\n"


def client_hello(server: TlsRiverbed) -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = client_context(server.certificates).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
