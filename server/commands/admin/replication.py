"""REPLICAOF, ROLE, WAIT, and the commands of replicas to their primary: REPLCONF, PSYNC.

`context.replication` does the work; this module parses the words and spells the errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int, parse_timeout_ms
from riverbed.server.commands.table import Flag, command
from riverbed.server.config.kinds import is_host
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NO_REPLY, OK

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Reply

BAD_HOST: Final = "ERR Invalid master host"
BAD_PORT: Final = "ERR Invalid master port"
REPLICA_CANNOT_FOLLOW: Final = "ERR Command is not valid when client is a replica."
ALREADY_FOLLOWING: Final = "OK Already connected to specified master"
WAIT_ON_REPLICA: Final = (
    "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured "
    "to be writable (which is not the default) writes to replicas are just local and are not propagated."
)
WAITAOF_ON_REPLICA: Final = (
    "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local and "
    "are not propagated."
)
LOCAL_OUT_OF_RANGE: Final = "ERR value is out of range, value must between 0 and 1"
TIMEOUT_NOT_POSITIVE: Final = "ERR FAILOVER timeout must be greater than 0"
REPLICAS_OUT_OF_RANGE: Final = "ERR value is out of range, must be positive"
_ADMIN: Final = Flag.ADMIN | Flag.NOSCRIPT


def _follow(request: Request) -> Reply:
    host_word, port_word = request.argv[1:]
    replication = request.context.replication
    if host_word.lower() == b"no" and port_word.lower() == b"one":
        replication.promote()
        return OK
    if request.session.is_replica:
        raise CommandError(REPLICA_CANNOT_FOLLOW)
    port = parse_int(port_word, BAD_PORT)
    if not 0 <= port <= 65535:
        raise CommandError(BAD_PORT)
    host = host_word.decode(errors="surrogateescape")
    if not is_host(host):
        raise CommandError(BAD_HOST)
    if not replication.follow(host, port):
        return ALREADY_FOLLOWING
    return OK


@command(
    "REPLICAOF <host port | NO ONE>",
    _ADMIN | Flag.STALE,
    since="5.0.0",
    summary="Makes the server a replica of another, or a primary again.",
)
def replicaof(request: Request) -> Reply:
    """REPLICAOF host port | NO ONE -> OK.  The link is made afterwards; INFO and ROLE show it."""
    return _follow(request)


@command("SLAVEOF <host port | NO ONE>", _ADMIN | Flag.STALE, summary="REPLICAOF under its former name.")
def slaveof(request: Request) -> Reply:
    """SLAVEOF host port | NO ONE -> OK."""
    return _follow(request)


@command(
    "FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]",
    _ADMIN | Flag.STALE,
    since="6.2.0",
    summary="Has a replica take over, and follows it.",
)
def failover(request: Request) -> Reply:
    """FAILOVER [TO host port [FORCE]] [TIMEOUT ms] | ABORT -> OK.  The handover comes afterwards; INFO shows it."""
    words, replication = request.argv[1:], request.context.replication
    if len(words) == 1 and words[0].lower() == b"abort":
        replication.abort_failover()
        return OK
    target: tuple[str, int] | None = None
    timeout_ms: int | None = None
    force = False
    at = 0
    while at < len(words):
        match words[at].lower():
            case b"timeout" if timeout_ms is None and at + 1 < len(words):
                timeout_ms = parse_int(words[at + 1])
                if timeout_ms <= 0:
                    raise CommandError(TIMEOUT_NOT_POSITIVE)
                at += 2
            case b"to" if target is None and at + 2 < len(words):
                target = words[at + 1].decode(errors="surrogateescape"), parse_int(words[at + 2])
                at += 3
            case b"force" if not force:
                force = True
                at += 1
            case _:
                raise CommandError(errors.SYNTAX)
    replication.fail_over(target, timeout_ms, force=force)
    return OK


@command(
    "ROLE",
    Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.FAST | Flag.SHOWS_TABLES,
    since="2.8.12",
    summary="Returns whether the server is a primary or a replica, and its peers.",
    categories=("admin", "dangerous"),
)
def role(request: Request) -> Reply:
    """ROLE -> [master, offset, [[ip, port, offset] ...]] or [slave, host, port, state, offset]."""
    return request.context.replication.role()


# -- what replicas say -------------------------------------------------------------------------------------------------


@command(
    "REPLCONF",
    _ADMIN | Flag.LOADING | Flag.STALE,
    since="3.0.0",
    summary="Carries the messages between primaries and replicas.",
    arity=-1,
)
def replconf(request: Request) -> Reply:
    """REPLCONF name value [name value ...] -> OK; none to ACK."""
    words = request.argv[1:]
    if len(words) % 2:
        raise CommandError(errors.SYNTAX)
    replication = request.context.replication
    for name, value in zip(words[::2], words[1::2], strict=True):
        lowered = name.lower()
        if lowered == b"ack":
            named = {option.lower(): _number(text) for option, text in zip(words[::2], words[1::2], strict=True)}
            replication.acknowledged(request.session, named[b"ack"], named.get(b"fack"))
            return NO_REPLY
        if lowered == b"getack":
            return NO_REPLY  # it is for replicas, which read it on their link to the primary
        if not replication.introduced(request.session, lowered, value):
            raise CommandError(b"ERR Unrecognized REPLCONF option: %b" % name)
    return OK


def _number(word: bytes) -> int:
    """An offset as a replica reports it; 0 when it is not a number."""
    digits = word.removeprefix(b"-")
    return int(word) if digits.isdigit() and len(digits) < 20 else 0


@command(
    "PSYNC replicationid offset",
    _ADMIN | Flag.NO_MULTI,
    since="2.8.0",
    summary="Begins to send the log to a replica.",
    arity=-3,
)
def psync(request: Request) -> Reply:
    """PSYNC id next-offset -> +CONTINUE or +FULLRESYNC, then the log for as long as the link lasts."""
    if request.session.is_replica:
        return NO_REPLY
    offset = parse_int(request.argv[2])
    if request.argv[3:4] and request.argv[3].lower() == b"failover":
        is_forced = request.argv[4:5] == [b"FORCE"]
        request.context.replication.take_over(request.argv[1].decode("latin-1"), offset - 1, is_forced=is_forced)
    request.context.replication.attach(request.session, request.argv[1].decode("latin-1"), offset)
    return NO_REPLY


@command("SYNC", _ADMIN | Flag.NO_MULTI, summary="Refused: a replica says PSYNC, and a backup is a snapshot.")
def sync(request: Request) -> Reply:
    """SYNC -> an error.  `redis-cli --rdb` and `--replica` send it, and replicas older than Redis 2.8."""
    raise CommandError("ERR SYNC is not supported: a replica says PSYNC, and RIVERBED SNAPSHOT makes a backup")


# -- waiting for replicas ----------------------------------------------------------------------------------------------


@command(
    "WAIT numreplicas timeout",
    Flag.NOSCRIPT | Flag.SHOWS_TABLES,
    group="generic",
    since="3.0.0",
    summary="Waits until so many replicas have all that this client wrote.",
    categories=("connection",),
    tips=("request_policy:all_shards", "response_policy:agg_min"),
)
def wait(request: Request) -> Reply:
    """WAIT numreplicas timeout-ms -> how many replicas have acknowledged what this client wrote."""
    if request.context.replication.is_replica:
        raise CommandError(WAIT_ON_REPLICA)
    count = parse_int(request.argv[1])
    deadline_ms = _deadline_ms(request, request.argv[2])
    return request.context.replication.wait(request, count, deadline_ms)


@command(
    "WAITAOF numlocal numreplicas timeout",
    Flag.NOSCRIPT | Flag.BLOCKING | Flag.SHOWS_TABLES,
    group="generic",
    since="7.2.0",
    summary="Waits until this client's writes are on this server's disk and on the disks of a number of replicas.",
    categories=("connection",),
    tips=("request_policy:all_shards", "response_policy:agg_min"),
)
def waitaof(request: Request) -> Reply:
    """WAITAOF numlocal numreplicas timeout-ms -> [1 if it is on this disk, how many replicas have it on theirs]."""
    local = parse_int(request.argv[1])
    if not 0 <= local <= 1:
        raise CommandError(LOCAL_OUT_OF_RANGE)
    count = parse_int(request.argv[2])
    if count < 0:
        raise CommandError(REPLICAS_OUT_OF_RANGE)
    deadline_ms = _deadline_ms(request, request.argv[3])
    if request.context.replication.is_replica:
        raise CommandError(WAITAOF_ON_REPLICA)
    return request.context.replication.wait(request, count, deadline_ms, local=local)


def _deadline_ms(request: Request, word: bytes) -> int | None:
    timeout_ms = parse_timeout_ms(word, request.now_ms)
    return request.now_ms + timeout_ms if timeout_ms else None
