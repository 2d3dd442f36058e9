"""OpenSSL's contexts: certificates, authorities, versions and ciphers, as the settings name them.

    settings --CONFIG SET--> a new pair of contexts --all good--> used by the connections that come from now on
                                    '--a file is missing or wrong: an error, a line in the log, and the old pair stays

Connections keep the context that they began with.  Names and meanings are those of Redis: the certificate of a peer is
checked against the authorities, and its name is not, because replicas find their primary by address.
"""

from __future__ import annotations

import logging
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverbed.server.config.kinds import BadValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.config.config import Config

log = logging.getLogger("riverbed")

NOT_UPDATED: Final = "Unable to update TLS configuration. Check server logs."
# OpenSSL reads whatever it is given, on the loop: 1 MB of certificates takes a second.  Chains and keys are far smaller
# than this, and so is the system's list of authorities, of 220 kB.
MAX_FILE_BYTES: Final = 128 << 10
MAX_AUTHORITIES_BYTES: Final = 1 << 20

# SSL_OP_NO_RX_CERTIFICATE_COMPRESSION of OpenSSL 3.2, for which Python has no name.  Compressed, a hundred certificates
# take 2 kB: what a handshake may have (`transport.py`) would be no bound for what it costs.
_NO_COMPRESSED_CHAINS: Final = 1 << 33 if ssl.OPENSSL_VERSION_INFO >= (3, 2) else 0

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_DEMANDS: Final = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "yes": ssl.CERT_REQUIRED}
_READ: Final = (
    "tls-cert-file",
    "tls-key-file",
    "tls-key-file-pass",
    "tls-client-cert-file",
    "tls-client-key-file",
    "tls-client-key-file-pass",
    "tls-dh-params-file",
    "tls-ca-cert-file",
    "tls-ca-cert-dir",
    "tls-protocols",
    "tls-ciphers",
    "tls-prefer-server-ciphers",
    "tls-session-caching",
    "tls-replication",
)


class TlsSettingsError(OSError):
    """The settings make no context; the text says which one is wrong, and why."""


class Contexts:
    """The contexts of one server, for the connections that it accepts and for the one that it makes to its primary."""

    def __init__(self, config: Config) -> None:
        """Raises TlsSettingsError."""
        self._config = config
        self._accepting: ssl.SSLContext | None = None
        self._connecting: ssl.SSLContext | None = None
        contexts = new_contexts(config)
        if contexts is not None:
            self._accepting, self._connecting = contexts
            self._tell_unused()
        config.prepare(_READ, self._prepare)
        config.observe("tls-auth-clients", self._set_demand)

    @property
    def accepting(self) -> ssl.SSLContext:
        assert self._accepting is not None, "a port with TLS has a context"
        return self._accepting

    @property
    def connecting(self) -> ssl.SSLContext:
        assert self._connecting is not None, "tls-replication has a context"
        return self._connecting

    def _prepare(self) -> Callable[[], None]:
        """Make new contexts; -> what has them used.  Raises BadValueError."""
        try:
            contexts = new_contexts(self._config)
        except TlsSettingsError as error:
            log.warning("TLS goes on as before: %s", error)
            raise BadValueError(NOT_UPDATED) from None

        if contexts is None:
            return lambda: None

        def apply() -> None:
            self._accepting, self._connecting = contexts
            log.info("TLS: the certificates were read; new connections use them")
            self._tell_unused()

        return apply

    def _tell_unused(self) -> None:
        """Redis also takes one of the two without the other, and looks at neither."""
        if bool(self._config.tls_client_cert_file) != bool(self._config.tls_client_key_file):
            log.warning("TLS: tls-client-cert-file and tls-client-key-file are not read, as only one of them is set")

    def _set_demand(self) -> None:
        if self._accepting is not None:
            self._accepting.verify_mode = _DEMANDS[self._config.tls_auth_clients]


def new_contexts(config: Config) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """The context for accepted connections and the one for made ones.  Raises TlsSettingsError.

    None when nothing speaks TLS: as in Redis, no file is read then.
    """
    if not (config.tls_port or config.tls_replication or config.metrics_tls):
        return None
    for name, value in (("tls-cert-file", config.tls_cert_file), ("tls-key-file", config.tls_key_file)):
        if not value:
            raise TlsSettingsError(f"No {name} configured!")
    believes = bool(config.tls_ca_cert_file or config.tls_ca_cert_dir)
    if not believes and (config.tls_replication or config.tls_auth_clients != "no"):
        raise TlsSettingsError(
            "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-replication or tls-auth-clients are"
            " enabled!"
        )
    accepting = _context(config, ssl.PROTOCOL_TLS_SERVER)
    accepting.verify_mode = _DEMANDS[config.tls_auth_clients]
    _show(accepting, "tls", config.tls_cert_file, config.tls_key_file, config.tls_key_file_pass)
    _narrow_server(accepting, config)
    connecting = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    if config.tls_client_cert_file and config.tls_client_key_file:
        own = config.tls_client_cert_file, config.tls_client_key_file, config.tls_client_key_file_pass
        _show(connecting, "tls-client", *own)
    else:
        _show(connecting, "tls", config.tls_cert_file, config.tls_key_file, config.tls_key_file_pass)
    return accepting, connecting


def _context(config: Config, protocol: int) -> ssl.SSLContext:
    """A context without a certificate of our own."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | _NO_COMPRESSED_CHAINS
    words = config.tls_protocols.lower().split() or list(_VERSIONS)
    if not set(words) <= set(_VERSIONS):
        raise TlsSettingsError(f"tls-protocols: {config.tls_protocols!r} is not of TLSv1.2 and TLSv1.3")
    versions = [_VERSIONS[word] for word in words]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if config.tls_ciphers:
        try:
            context.set_ciphers(config.tls_ciphers)
        except (ssl.SSLError, ValueError):  # the latter for bytes that no name has
            raise TlsSettingsError(f"tls-ciphers: OpenSSL knows none of {config.tls_ciphers!r}") from None
    if config.tls_ca_cert_file:
        path = _readable("tls-ca-cert-file", config.tls_ca_cert_file, MAX_AUTHORITIES_BYTES)
        _try("tls-ca-cert-file", path, lambda: context.load_verify_locations(cafile=path))
    if config.tls_ca_cert_dir:
        path = config.tls_ca_cert_dir
        if not Path(path).is_dir():
            raise TlsSettingsError(f"tls-ca-cert-dir: {path}: not a folder")
        _try("tls-ca-cert-dir", path, lambda: context.load_verify_locations(capath=path))
    return context


def _show(context: ssl.SSLContext, prefix: str, cert: str, key: str, password: bytes) -> None:
    """Have connections of `context` show this certificate."""
    cert_path, key_path = _readable(f"{prefix}-cert-file", cert), _readable(f"{prefix}-key-file", key)
    # without a password OpenSSL would ask at the terminal
    _try(
        f"{prefix}-cert-file, {prefix}-key-file",
        f"{cert_path}, {key_path}",
        lambda: context.load_cert_chain(cert_path, key_path, lambda: password),
    )


def _narrow_server(context: ssl.SSLContext, config: Config) -> None:
    if not config.tls_prefer_server_ciphers:
        context.options &= ~int(ssl.OP_CIPHER_SERVER_PREFERENCE)  # not of the flags: that has no bit without a name
    if not config.tls_session_caching:
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    if config.tls_dh_params_file:
        path = _readable("tls-dh-params-file", config.tls_dh_params_file)
        _try("tls-dh-params-file", path, lambda: context.load_dh_params(path))


def _readable(name: str, path: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """`path`, when it is a file of at most so many bytes.  Raises TlsSettingsError."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:
        raise TlsSettingsError(f"{name}: {path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(found.st_mode):
        raise TlsSettingsError(f"{name}: {path}: not a file")
    if found.st_size > most_bytes:
        raise TlsSettingsError(f"{name}: {path}: has {found.st_size:,} bytes, and may have {most_bytes:,}")
    return path


def _try(name: str, path: str, load: Callable[[], None]) -> None:
    """Call `load`.  Raises TlsSettingsError for what OpenSSL refuses."""
    try:
        load()
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise TlsSettingsError(f"{name}: {path}: {reason}") from None
    except (OSError, ValueError) as error:
        raise TlsSettingsError(f"{name}: {path}: {getattr(error, 'strerror', None) or error}") from None
