"""Authorities and certificates for tests, made with openssl: a server's, a client's, and those of another authority."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Of an authority.  Python from 3.13 on believes none without it, and no certificate without the key of its issuer.
_USAGE: Final = "keyUsage=critical,keyCertSign,cRLSign"


def _openssl(*words: str | Path) -> None:
    program = shutil.which("openssl")
    assert program is not None, "openssl is not installed and makes the certificates of these tests"
    subprocess.run([program, *map(str, words)], check=True, capture_output=True)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    cert: Path
    key: Path


class Authority:
    """One authority; its certificate is `cert`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.name = name
        self.cert = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
        _openssl(*words, "-subj", f"/CN=Authority {name}", "-addext", _USAGE, "-keyout", self._key, "-out", self.cert)

    def issue(self, name: str, *, password: str = "") -> Pair:
        """A certificate for this machine, for servers and clients alike; `password` encrypts its key."""
        pair = Pair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        hidden = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        words = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *hidden]
        _openssl(*words, "-subj", f"/CN={name}", "-keyout", pair.key, "-out", request)
        sign = ["x509", "-req", "-days", "30", "-CAcreateserial", "-CA", self.cert, "-CAkey", self._key]
        _openssl(*sign, "-in", request, "-extfile", extensions, "-out", pair.cert)
        return pair


@dataclass(frozen=True)
class Certificates:
    """What a server with TLS and its clients need."""

    authority: Authority
    server: Pair
    client: Pair

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        authority = Authority(directory)
        return cls(authority, authority.issue("server"), authority.issue("client"))

    def settings(self) -> dict[str, object]:
        """The settings of a server, of ours or of Redis."""
        return {
            "tls-cert-file": self.server.cert,
            "tls-key-file": self.server.key,
            "tls-ca-cert-file": self.authority.cert,
        }
