"""The settings of TLS: as in Redis where Redis has them, and read again while the server runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.server.config.settings import SETTINGS
from tests.conftest import StartRiverbed
from tests.support.certificates import Authority, Certificates, Pair
from tests.support.tls import Start, TlsClient, TlsRedis, client_context, is_served


def shown(port: int, certificates: Certificates) -> bytes:
    """The certificate that the server at `port` shows, as bytes."""
    with TlsClient(port, client_context(certificates, certificates.client)) as client:
        found = client.tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def put(pair: Pair, place: Pair) -> None:
    """Have `place` be the files of `pair`, as a renewal does."""
    shutil.copy(pair.cert, place.cert)
    shutil.copy(pair.key, place.key)


def test_a_renewed_certificate_is_used_after_config_set_of_the_same_file(
    start_tls: Start,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    place = Pair(tmp_path / "now.crt", tmp_path / "now.key")
    put(certificates.server, place)
    server = start_tls(tls_cert_file=place.cert, tls_key_file=place.key)
    first = shown(server.port, certificates)
    put(certificates.authority.issue("renewed"), place)
    with server.client() as client:
        assert shown(server.port, certificates) == first
        assert client.ask("CONFIG", "SET", "tls-cert-file", place.cert) == b"+OK\r\n"
        assert shown(server.port, certificates) != first
        assert client.ask("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("wrong", ["missing", "folder", "text", "other key", "pipe", "large"])
def test_a_wrong_certificate_is_an_error_and_the_old_one_stays(
    start_tls: Start,
    certificates: Certificates,
    tmp_path: Path,
    wrong: str,
) -> None:
    server = start_tls()
    first = shown(server.port, certificates)
    path = tmp_path / "wrong"
    if wrong == "folder":
        path.mkdir()
    elif wrong == "text":
        path.write_text("no certificate")
    elif wrong == "other key":
        shutil.copy(certificates.client.cert, path)
    elif wrong == "pipe":
        os.mkfifo(path)
    elif wrong == "large":
        path.write_bytes(bytes(5 << 20))
    with server.client() as client:
        reply = client.ask("CONFIG", "SET", "maxclients", 77, "tls-cert-file", path, "tls-auth-clients", "no")
        assert reply == (
            b"-ERR CONFIG SET failed (possibly related to argument 'tls-cert-file') - "
            b"Unable to update TLS configuration. Check server logs.\r\n"
        )
        assert (
            client.tree("CONFIG", "GET", "tls-cert-file").pairs()[0][1].text == str(certificates.server.cert).encode()
        )
        assert client.tree("CONFIG", "GET", "maxclients").pairs()[0][1].text == b"10000"
    assert shown(server.port, certificates) == first
    assert not is_served(server, client_context(certificates))  # clients must still show theirs
    assert re.search(f"TLS goes on as before: tls-cert-file.*: .*{path}.*: ", server.log_text())


@pytest.mark.parametrize(("name", "most_bytes"), [("tls-cert-file", 128 << 10), ("tls-ca-cert-file", 1 << 20)])
def test_a_file_that_takes_long_to_read_is_refused(
    start_tls: Start, certificates: Certificates, tmp_path: Path, name: str, most_bytes: int
) -> None:
    server = start_tls()
    certificate = Path(str(certificates.settings()[name])).read_bytes()
    path = tmp_path / "many.crt"
    path.write_bytes(certificate + (most_bytes - len(certificate)) * b"\n")
    with server.client() as client:
        assert client.ask("CONFIG", "SET", name, path) == b"+OK\r\n"
        path.write_bytes(path.read_bytes() + b"\n")
        assert client.ask("CONFIG", "SET", name, path).startswith(b"-ERR CONFIG SET failed")
    assert f"{name}: {path}: has {most_bytes + 1:,} bytes, and may have {most_bytes:,}" in server.log_text()


def test_a_certificate_for_a_primary_without_its_key_is_warned_of(
    start_tls: Start, certificates: Certificates, tmp_path: Path
) -> None:
    """Redis takes it, too; what is named there is not opened: a device has no end, and a pipe keeps all waiting."""
    told = "tls-client-cert-file and tls-client-key-file are not read"
    os.mkfifo(tmp_path / "pipe")
    server = start_tls()
    with server.client() as client:
        assert told not in server.log_text()
        assert client.ask("CONFIG", "SET", "tls-client-cert-file", tmp_path / "pipe") == b"+OK\r\n"
        assert server.log_text().count(told) == 1
        for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
            words = ["tls-client-cert-file", path, "tls-client-key-file", certificates.client.key]
            assert client.ask("CONFIG", "SET", *words).startswith(b"-ERR CONFIG SET failed")
            assert f"tls-client-cert-file: {path}: not a file" in server.log_text()
        words = ["tls-client-cert-file", certificates.client.cert, "tls-client-key-file", certificates.client.key]
        assert client.ask("CONFIG", "SET", *words) == b"+OK\r\n"
        assert server.log_text().count(told) == 1
    assert start_tls(tls_client_key_file=certificates.client.key).log_text().count(told) == 1


def test_certificate_and_key_change_together_and_the_file_is_rewritten(
    start_riverbed: StartRiverbed,
    certificates: Certificates,
) -> None:
    server = start_riverbed()
    with server.client() as client:  # without a port for TLS nothing is read, as in Redis
        for name, value in certificates.settings().items():
            assert client.ask("CONFIG", "SET", name, value) == b"+OK\r\n"
        assert client.ask("CONFIG", "SET", "tls-cert-file", "/nowhere") == b"+OK\r\n"
        reply = client.ask("CONFIG", "SET", "tls-replication", "yes")
        assert reply.endswith(b"'tls-replication') - Unable to update TLS configuration. Check server logs.\r\n")
        other = Pair(certificates.client.cert, certificates.client.key)
        words = ["tls-cert-file", other.cert, "tls-key-file", other.key, "tls-replication", "yes"]
        assert client.ask("CONFIG", "SET", *words) == b"+OK\r\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "No tls-cert-file configured!"),
        ({"tls-cert-file": "server.crt"}, "No tls-key-file configured!"),
        ({"tls-cert-file": "server.crt", "tls-key-file": "server.key"}, "Either tls-ca-cert-file or tls-ca-cert-dir"),
        ({"tls-cert-file": "server.crt", "tls-key-file": "client.key", "tls-auth-clients": "no"}, "values mismatch"),
        ({"tls-protocols": "TLSv1.1"}, "'TLSv1.1' is not of TLSv1.2 and TLSv1.3"),
        ({"tls-ciphers": "NONSENSE"}, "OpenSSL knows none of 'NONSENSE'"),
        ({"tls-ciphersuites": "TLS_AES_128_GCM_SHA256"}, "Python cannot choose the ciphers of TLS 1.3"),
        ({"tls-ca-cert-dir": "missing"}, "not a folder"),
    ],
)
def test_a_server_that_cannot_speak_tls_does_not_start(
    tmp_path: Path,
    certificates: Certificates,
    options: dict[str, str],
    reason: str,
) -> None:
    files = {} if not options or "tls-cert-file" in options else certificates.settings()
    settings = {"tls-port": 1, "port": 0, "dir": tmp_path / "data", **files, **options}
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "riverbed.server.main", *words],
        check=False,
        capture_output=True,
        cwd=certificates.authority.directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1
    assert reason in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_a_folder_of_authorities_is_as_good_as_a_file(start_tls: Start, tmp_path: Path) -> None:
    own = Authority(tmp_path / "authorities", "second")
    client = own.issue("client")
    subprocess.run(["openssl", "rehash", own.directory], check=True, capture_output=True)
    server = start_tls(tls_ca_cert_dir=own.directory)
    assert is_served(server, client_context(start_tls.certificates, client))


@pytest.mark.parametrize("ciphers", [b"a\0b", b"\xff"])
def test_ciphers_that_no_name_can_be_are_refused_and_not_kept(start_tls: Start, ciphers: bytes) -> None:
    with start_tls().client() as client:
        assert client.ask("CONFIG", "SET", "tls-ciphers", ciphers).startswith(b"-ERR CONFIG SET failed")
        assert client.ask("CONFIG", "SET", "tls-protocols", "TLSv1.2") == b"+OK\r\n"


# -- beside Redis ------------------------------------------------------------------------------------------------------


def test_config_answers_as_redis_does(
    start_tls: Start,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    names = sorted(name for name in SETTINGS if name.startswith("tls-") and name != "tls-port")
    key = certificates.authority.issue("locked-too", password="secret")
    files = certificates.settings()
    script: list[list[object]] = [
        ["tls-auth-clients", "maybe"],
        ["tls-auth-clients", "Optional"],
        ["tls-auth-clients", "yes"],
        ["tls-replication", "perhaps"],
        ["tls-cert-file", "/nowhere"],
        ["tls-key-file", "/nowhere"],
        ["tls-ca-cert-file", "/nowhere"],
        ["tls-ca-cert-file", ""],
        ["tls-cert-file", certificates.client.cert],
        ["tls-cert-file", certificates.client.cert, "tls-key-file", certificates.client.key],
        ["tls-cert-file", key.cert, "tls-key-file", key.key, "tls-key-file-pass", "wrong"],
        ["tls-cert-file", key.cert, "tls-key-file", key.key, "tls-key-file-pass", "secret"],
        [word for pair in files.items() for word in pair],
        ["tls-ciphers", "NONSENSE"],
        ["tls-ciphers", "HIGH"],
        ["tls-protocols", "TLSv1.2"],
        ["tls-protocols", "nonsense"],
        ["tls-protocols", ""],
        ["tls-prefer-server-ciphers", "yes"],
        ["tls-session-caching", "no"],
        ["tls-client-cert-file", "/nowhere"],
        ["tls-client-cert-file", certificates.client.cert, "tls-client-key-file", certificates.client.key],
        ["tls-client-cert-file", ""],
        ["tls-dh-params-file", "/nowhere"],
        ["tls-cluster", "no"],
        ["tls-session-cache-size", "20480"],
        ["tls-session-cache-timeout", "300"],
        ["tls-replication", "yes"],
        ["tls-auth-clients", "no", "tls-ca-cert-file", ""],
        ["tls-replication", "no"],
        ["tls-auth-clients", "no", "tls-ca-cert-file", ""],
    ]
    directory = tmp_path / "redis"
    directory.mkdir()
    theirs = TlsRedis(directory, tmp_path / "logs")
    theirs.certificates = certificates
    ours = start_tls()
    with theirs, theirs.client() as their_client, ours.client() as our_client:
        for words in script:
            pair = [client.ask("CONFIG", "SET", *map(str, words)) for client in (our_client, their_client)]
            assert pair[0] == pair[1], words
            got = [client.tree("CONFIG", "GET", *names).pairs() for client in (our_client, their_client)]
            texts = [{name.text: value.text for name, value in pairs} for pairs in got]
            assert texts[0] == texts[1], words
