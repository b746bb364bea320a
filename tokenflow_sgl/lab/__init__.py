"""What no server imports: traces, devices, the simulator, replays, reports, a server from outside.

Commands and notebooks use it; a server process that loads a module of it has a fault, which
`tests` prove at run time.
"""
