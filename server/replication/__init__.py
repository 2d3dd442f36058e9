"""Replication: a primary sends its log to replicas, a replica follows a primary, and servers change roles.

    primary     the replicas that are attached to us: their identity, how far they are, pings
    sender      what one of them is sent: +CONTINUE or +FULLRESYNC, then the log from its place on
    waits       WAIT and WAITAOF
    failover    a primary hands over to one of its replicas, and follows it
    follower    the link to our primary, tried again for ever
    applier     applies what comes on it, in slices
    attempts    when it is tried again, and what went wrong before
    link        the handshake on that link, and its bytes
    needs       what a follower and its applier need of their server
    fullsync    a whole state received beside the old one, replayed by a process of its own, and swapped in
    replacement puts the store of a full sync in the place of ours
    worker      the process that replays it
    role        whether we are primary or replica; what commands ask

The stream is the log.  A replica of ours is sent the log's bytes as they are and appends the same bytes; a real Redis
is sent the commands in the log.  Both count bytes of commands, so all servers with one replication id share offsets,
and what a replica missed is read from the log's files.
"""
