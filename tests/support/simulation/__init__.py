"""A whole deployment in one process: servers, replicas, a Sentinel and clients, in virtual time, from one seed.

    python -m tests.support.simulation --seeds 50 --from 1        exit status 1 when a seed finds a violation
    python -m tests.support.simulation --seed 17 --history        one seed, with everything that happened

    loop         one asyncio loop for each machine, and the scheduler that chooses which of them runs next
    network      connections between machines: delays, pieces, cuts, partitions
    disk         the files of one machine: what is durable, what a power cut leaves of the rest, faults
    tables       the same for LMDB's file
    children     the processes that a server starts
    machine      one machine with a server that starts, stops, is killed and loses power
    clients      what clients ask for
    sentinel     who is the primary
    faults       what goes wrong, and when
    history      what was asked and answered, by clients and by the world
    checker      whether that may be so
    run          one seed from beginning to end
    shrink       the smallest part of a failing seed that still fails

The code under test is the product's, from the bytes of a connection to the bytes in a file; only the clock, the event
loop, the file operations and LMDB's syncs are doubles.  LMDB itself is real, on a real temporary directory.

The same seed gives the same history, byte for byte, on any machine: time is virtual, and nothing waits for real time.
"""
