"""SUBSCRIBE, PUBLISH and their kin: messages that are kept nowhere.

`server.commands.channels` keeps the subscriptions; this module has the commands and their replies.  Every name is
confirmed by a push, not by a reply, so CLIENT REPLY OFF does not hide it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.slices import in_pieces, in_slices, joined
from riverbed.server.commands.table import NO_KEYS, Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import Push
from riverbed.store.format.resp import array_head, bulk

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.channels import Channels
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply

SSUBSCRIBE_DENIED: Final = "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"
_SUBSCRIBING: Final = Flag.PUBSUB | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.SUBSCRIBER
_PUBLISHING: Final = Flag.PUBSUB | Flag.LOADING | Flag.STALE | Flag.FAST
_LOOKING: Final = Flag.PUBSUB | Flag.LOADING | Flag.STALE
_SHARD_KINDS: Final = (b"ssubscribe", b"sunsubscribe")
# Names subscribed to, or looked up, in one slice: about a millisecond.
_NAMES_A_SLICE: Final = 500


def _listened(session: Session) -> int:
    """How many channels and patterns the client has subscribed to; every confirmation of them has this number."""
    return len(session.subscriptions.channels) + len(session.subscriptions.patterns)


def _listened_shards(session: Session) -> int:
    return len(session.subscriptions.shard_channels)


def _confirmation(session: Session, kind: bytes, name: bytes | None, count: int) -> bytes:
    resp2 = session.resp == 2
    head = b"%b3\r\n$%d\r\n%b\r\n" % (b"*" if resp2 else b">", len(kind), kind)
    if name is None:
        return b"%b%b:%d\r\n" % (head, b"$-1\r\n" if resp2 else b"_\r\n", count)
    return b"%b$%d\r\n%b\r\n:%d\r\n" % (head, len(name), name, count)


def _subscribe(request: Request, channels: Channels, kind: bytes) -> Reply:
    """Subscribe to every name in the request, and confirm each with the count so far."""
    return in_slices(
        request,
        lambda own: _confirm_each(own, own.argv[1:], channels.subscribe, kind),
        is_short=len(request.argv) <= _NAMES_A_SLICE,
    )


def _unsubscribe(request: Request, channels: Channels, kind: bytes) -> Reply:
    """End the named subscriptions, or all of that kind; each name is confirmed, even one without a subscription."""
    names = request.argv[1:] or channels.names_of(request.session)
    return in_slices(
        request,
        lambda own: _confirm_each(own, names, channels.unsubscribe, kind),
        is_short=len(names) <= _NAMES_A_SLICE,
    )


def _confirm_each(request: Request, names: list[bytes], change: Callable[[Session, bytes], None], kind: bytes) -> Work:
    """Call `change` for one name after the other; the confirmations of a slice are sent at its end.

    So the client gets the confirmation of a name before any message that comes by it.
    """
    session = request.session
    counted = _listened_shards if kind in _SHARD_KINDS else _listened
    confirmations = []
    for number, name in enumerate(names, 1):
        change(session, name)
        confirmations.append(_confirmation(session, kind, name, counted(session)))
        if not number % _NAMES_A_SLICE and request.may_block and number < len(names):
            session.refresh()
            request.context.pubsub.deliver(session, Push(b"".join(confirmations)))
            confirmations.clear()
            yield
    session.refresh()
    if not names:
        confirmations.append(_confirmation(session, kind, None, counted(session)))
    return Push(b"".join(confirmations))


# -- listening ---------------------------------------------------------------------------------------------------------


@command("SUBSCRIBE channel [channel ...]", _SUBSCRIBING, summary="Listens to channels.")
def subscribe(request: Request) -> Reply:
    """SUBSCRIBE channel [channel ...] -> for each: `subscribe`, channel, how many channels and patterns by now."""
    return _subscribe(request, request.context.pubsub.channels, b"subscribe")


@command("UNSUBSCRIBE [channel [channel ...]]", _SUBSCRIBING, summary="Listens to channels no longer.")
def unsubscribe(request: Request) -> Reply:
    """UNSUBSCRIBE [channel ...] -> for each: `unsubscribe`, channel, how many channels and patterns are left."""
    return _unsubscribe(request, request.context.pubsub.channels, b"unsubscribe")


@command("PSUBSCRIBE pattern [pattern ...]", _SUBSCRIBING, summary="Listens to all channels that match patterns.")
def psubscribe(request: Request) -> Reply:
    """PSUBSCRIBE pattern [pattern ...] -> for each: `psubscribe`, pattern, how many channels and patterns by now."""
    return _subscribe(request, request.context.pubsub.patterns, b"psubscribe")


@command("PUNSUBSCRIBE [pattern [pattern ...]]", _SUBSCRIBING, summary="Listens to patterns no longer.")
def punsubscribe(request: Request) -> Reply:
    """PUNSUBSCRIBE [pattern ...] -> for each: `punsubscribe`, pattern, how many channels and patterns are left."""
    return _unsubscribe(request, request.context.pubsub.patterns, b"punsubscribe")


@command(
    "SSUBSCRIBE shardchannel [shardchannel ...]",
    _SUBSCRIBING,
    since="7.0.0",
    summary="Listens to shard channels, which are names of their own.",
)
def ssubscribe(request: Request) -> Reply:
    """SSUBSCRIBE shardchannel [shardchannel ...] -> for each: `ssubscribe`, channel, how many shard channels by now."""
    if not request.may_block:  # SUBSCRIBE is allowed, as Redis has it for clients of old
        raise CommandError(SSUBSCRIBE_DENIED)
    return _subscribe(request, request.context.pubsub.shard_channels, b"ssubscribe")


@command(
    "SUNSUBSCRIBE [shardchannel [shardchannel ...]]",
    _SUBSCRIBING,
    since="7.0.0",
    summary="Listens to shard channels no longer.",
)
def sunsubscribe(request: Request) -> Reply:
    """SUNSUBSCRIBE [shardchannel ...] -> for each: `sunsubscribe`, channel, how many shard channels are left."""
    return _unsubscribe(request, request.context.pubsub.shard_channels, b"sunsubscribe")


# -- speaking ----------------------------------------------------------------------------------------------------------


@command("PUBLISH channel message", _PUBLISHING, summary="Sends a message to all subscribers of a channel.")
def publish(request: Request) -> Reply:
    """PUBLISH channel message -> how many subscriptions on this server got it; subscribers of replicas do not.

    It is not in the log, so CLIENT PAUSE WRITE does not hold it back.  In Redis it does: there a Sentinel that says
    hello to a paused primary is held back, takes the primary for down, and cannot tell it that it is a replica now.
    """
    return in_slices(request, _publish, is_short=not request.context.pubsub.patterns)


def _publish(request: Request) -> Work:
    return (yield from request.context.pubsub.publish(*request.argv[1:]))


@command(
    "SPUBLISH shardchannel message",
    _PUBLISHING,
    since="7.0.0",
    summary="Sends a message to all subscribers of a shard channel.",
)
def spublish(request: Request) -> int:
    """SPUBLISH shardchannel message -> how many subscriptions it went to."""
    return request.context.pubsub.publish_to_shard(*request.argv[1:])


# -- PUBSUB ------------------------------------------------------------------------------------------------------------


container("PUBSUB", group="pubsub", since="2.8.0", summary="Container of commands about subscriptions.")


@command("PUBSUB CHANNELS [pattern]", _LOOKING, summary="Lists the channels with subscribers.")
def pubsub_channels(request: Request) -> Reply:
    """PUBSUB CHANNELS [pattern] -> the channels with subscribers; patterns do not show."""
    return _names(request, request.context.pubsub.channels)


@command(
    "PUBSUB SHARDCHANNELS [pattern]", _LOOKING, since="7.0.0", summary="Lists the shard channels with subscribers."
)
def pubsub_shardchannels(request: Request) -> Reply:
    """PUBSUB SHARDCHANNELS [pattern] -> the shard channels with subscribers."""
    return _names(request, request.context.pubsub.shard_channels)


@command("PUBSUB NUMSUB [channel [channel ...]]", _LOOKING, summary="Counts the subscribers of channels.")
def pubsub_numsub(request: Request) -> Reply:
    """PUBSUB NUMSUB [channel ...] -> channel, count, channel, count ...; listening by pattern does not count."""
    return _counts(request, request.context.pubsub.channels)


@command(
    "PUBSUB SHARDNUMSUB [shardchannel [shardchannel ...]]",
    _LOOKING,
    since="7.0.0",
    summary="Counts the subscribers of shard channels.",
    keys=NO_KEYS,
)
def pubsub_shardnumsub(request: Request) -> Reply:
    """PUBSUB SHARDNUMSUB [shardchannel ...] -> channel, count, channel, count ..."""
    return _counts(request, request.context.pubsub.shard_channels)


@command("PUBSUB NUMPAT", _LOOKING, summary="Counts the patterns with subscribers.")
def pubsub_numpat(request: Request) -> int:
    """PUBSUB NUMPAT -> how many different patterns there are."""
    return len(request.context.pubsub.patterns)


declare_help(
    "PUBSUB",
    "CHANNELS [<pattern>]",
    "    Return the currently active channels matching a <pattern> (default: '*').",
    "NUMPAT",
    "    Return number of subscriptions to patterns.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers for the specified channels, excluding",
    "    pattern subscriptions(default: no channels).",
    "SHARDCHANNELS [<pattern>]",
    "    Return the currently active shard level channels matching a <pattern> (default: '*').",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers for the specified shard level channel(s)",
    since="6.2.0",
)


def _names(request: Request, channels: Channels) -> Reply:
    if len(request.argv) > 3:
        raise errors.subcommand_syntax(request.argv)
    pattern = request.argv[2] if len(request.argv) == 3 else None
    return in_slices(request, partial(_list_names, channels, pattern))


def _list_names(channels: Channels, pattern: bytes | None, request: Request) -> Work:
    names = yield from channels.names(pattern)
    parts = [array_head(len(names))]
    for at in range(0, len(names), _NAMES_A_SLICE):
        if at:
            yield
        parts += joined(list(map(bulk, names[at : at + _NAMES_A_SLICE])))
    return in_pieces(request, parts)


def _counts(request: Request, channels: Channels) -> Reply:
    return in_slices(request, lambda own: _count_each(own, channels), is_short=len(request.argv) <= _NAMES_A_SLICE)


def _count_each(request: Request, channels: Channels) -> Work:
    names = request.argv[2:]
    parts = [array_head(2 * len(names))]
    for at in range(0, len(names), _NAMES_A_SLICE):
        if at:
            yield
        parts += joined([b"%b:%d\r\n" % (bulk(name), channels.count(name)) for name in names[at : at + _NAMES_A_SLICE]])
    return in_pieces(request, parts)
