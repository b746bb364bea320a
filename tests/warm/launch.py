"""Run a server as a fork of `sglang_forks.py`: ``launch.py SOCKET MODULE-OR-SCRIPT [ARGUMENT]...``.

Stands for the server's process: what that prints goes where this would print, that ends when this
is ended, and this ends with that one's exit code.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect(sys.argv[1])
    message = json.dumps({"command": sys.argv[2:], "env": dict(os.environ)}).encode()
    socket.send_fds(connection, [message], [sys.stdout.fileno(), sys.stderr.fileno()])
    sys.exit(int(connection.recv(16) or b"1"))
