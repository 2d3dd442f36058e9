"""What runs beside the clients' commands: tasks of the event loop, threads, and processes of their own.

`tasks` starts every task and thread of the server, `worker` every process.  Nothing else in the server does, and a test
holds it to that, so that nothing ends unnoticed and nothing outlives the server.  `child` is the other end of
`worker`: what a process of ours runs to hear and answer its server.

None of it knows what the work is.  Read `tasks` first.
"""
