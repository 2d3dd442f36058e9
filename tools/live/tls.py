"""How the tools speak TLS: the options of redis-cli, and what they make.

A server is believed when its certificate is of a known authority, and has the name that the user has typed.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click

from riverbed.tools.console.console import Failure

_FILE: Final = click.Path(exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Whether TLS is asked for, and files: authorities to believe (none: the system's), our certificate and its key."""

    is_asked: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @property
    def is_implied(self) -> bool:
        """Whether there is an option that only makes sense with TLS, so that nothing goes in the clear by mistake."""
        return self.is_asked or any((self.ca_file, self.cert_file, self.key_file))

    def context(self) -> ssl.SSLContext:
        """Raises Failure when a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except ssl.SSLError as error:
            files = [file for file in (self.ca_file, self.cert_file, self.key_file) if file is not None]
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise Failure(f"the certificates in {', '.join(files)} cannot be used: {reason}") from error
        except OSError as error:
            raise Failure(f"a certificate cannot be read: {error}") from error
        return context


NO_TLS: Final = TlsOptions()


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of redis-cli about TLS; it gets them as `tls`."""

    @click.option("--tls", is_flag=True, help="Speak TLS to a server; rediss:// asks for it as well.")
    @click.option("--cacert", "--tls-ca", type=_FILE, metavar="FILE", help="Believe these authorities.")
    @click.option("--cert", type=_FILE, metavar="FILE", help="Show this certificate.")
    @click.option("--key", "key_file", type=_FILE, metavar="FILE", help="The certificate's private key.")
    @functools.wraps(command)
    def with_tls(
        *words: Any, tls: bool, cacert: str | None, cert: str | None, key_file: str | None, **named: Any
    ) -> Any:
        return command(*words, tls=TlsOptions(tls, cacert, cert, key_file), **named)

    return with_tls
