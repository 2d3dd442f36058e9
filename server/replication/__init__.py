"""Replication: a primary that sends its log on, replicas that follow one, and what changes when roles do.

    primary     the replicas that are attached to us: who they are, how far they are, pings
    sender      what one of them is sent: +CONTINUE or +FULLRESYNC, then the log from its place on
    waits       WAIT and WAITAOF
    failover    a primary hands over to one of its replicas, and follows it
    follower    the link to our primary, tried again for ever; applies what comes
    link        the handshake on that link, and its bytes
    fullsync    a whole state received beside the old one, folded by a process of its own, and swapped in
    role        which of both we are; what commands ask

The stream is the log.  A replica of ours is sent its bytes as they are and appends the very same; a real Redis is sent
the commands in it.  Both count bytes of commands, so all servers of a line share its offsets, and what a replica missed
is read from the log's files.
"""
