"""The options of a write: read from Spark's options and checked.

    server=host:port    append to the streams of a running server
    path, or save(...)  make a new data directory, offline

Options that the reader has too have the same names.  This module opens no sockets and no files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import Address, without_password
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions
from riverbed.tools.spark.errors import OptionError
from riverbed.tools.spark.reading.options import is_uri, local_path, none_left, require_no_nul, whole

_KNOWN: Final = (
    "server, user, password, tls, tlsCaFile, tlsCertFile, tlsKeyFile, db, stream, jobId, retries, timeoutSeconds, "
    "pipelineRows for a server; "
    "path, db, stream for a new data directory"
)
_RETRIES: Final = 5
_TIMEOUT_S: Final = 60
_PIPELINE_ROWS: Final = 500
_MAX_JOB_CHARACTERS: Final = 200
# "x:3" would be the key of the journal of partition 3 of job "x".
_JOB = re.compile(r"(?!.*:[0-9]+$)[!-~]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A checked set of options, with either `server` or `path`.

    `stream` None: a column names the stream.  `job_id` None: every run of the query is a new job.
    """

    server: Address | None = None
    path: str | None = None
    db: int = 0
    stream: bytes | None = None
    job_id: str | None = None
    retries: int = _RETRIES
    timeout_s: int = _TIMEOUT_S
    pipeline_rows: int = _PIPELINE_ROWS


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of the user.  Raises OptionError that names the option and its valid values."""
    given = {name.lower(): value for name, value in options.items()}
    given.pop("checkpointlocation", None)  # Spark's own option of a streaming query
    server = given.pop("server", None)
    path = given.pop("path", None)
    if (server is None) == (path is None):
        raise OptionError(
            'say where to write: option("server", "host:port") for a running server, or save("DIR") for a new data '
            "directory; not both"
        )
    if path is not None:
        require_no_nul(path)
        path = local_path(path)
        if is_uri(path):
            raise OptionError(f"{path}: a new data directory is made on a disk that driver and executors share")
    stream = given.pop("stream", None)
    job_id = given.pop("jobid", None)
    if job_id is not None and (len(job_id) > _MAX_JOB_CHARACTERS or not _JOB.fullmatch(job_id)):
        raise OptionError(
            "jobId must be printable ASCII without blanks, of at most 200 characters, and not end with a colon and "
            f"digits, not {job_id!r}"
        )
    if server is None and job_id is not None:
        raise OptionError("jobId is for a server: a data directory is made whole or not at all")
    asked = WriteOptions(
        server=None if server is None else _address(server, given),
        path=path,
        db=whole(given, "db", 0, 15),
        stream=None if stream is None else stream.encode(),
        job_id=job_id,
        retries=whole(given, "retries", 0, 1000, _RETRIES),
        timeout_s=whole(given, "timeoutSeconds", 1, 86_400, _TIMEOUT_S),
        pipeline_rows=whole(given, "pipelineRows", 1, 100_000, _PIPELINE_ROWS),
    )
    none_left(given, _KNOWN)
    return asked


def _tls(given: dict[str, str]) -> TlsOptions:
    asked = given.pop("tls", "false").lower()
    if asked not in ("true", "false"):
        raise OptionError(f"tls must be true or false, not {asked!r}")
    return TlsOptions(asked == "true", *(given.pop(f"tls{which}file", None) for which in ("ca", "cert", "key")))


def _address(server: str, given: dict[str, str]) -> Address:
    try:
        address = server_address(server.strip(), _tls(given))
    except Failure as failure:
        raise OptionError(str(failure)) from failure
    if address is None:
        raise OptionError(f"server must be host:port or redis://host:port, not {without_password(server)!r}")
    if address.database is not None:
        raise OptionError("name the database with option db, not in the server's URL")
    user, password = given.pop("user", None), given.pop("password", None)
    if user is not None and password is None:
        raise OptionError("a user without a password")
    return address if password is None else replace(address, user=user, password=password)
