"""A server that is a fork prints to both of the streams that it was asked with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import sglang_forks

WARM = Path(sglang_forks.__file__).parent
SCRIPT = "import os, sys; print('out'); print(os.environ['SAID'], file=sys.stderr); sys.exit(3)"


def test_both_streams_go_where_the_launchers_would(tmp_path) -> None:
    said = tmp_path / "said.py"
    said.write_text(SCRIPT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        launcher = subprocess.Popen(
            [sys.executable, "-I", "-S", WARM / "launch.py", tmp_path / "socket", said],
            env={**os.environ, "SAID": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = listening.accept()
        with connection:
            message, outputs, _, _ = socket.recv_fds(connection, sglang_forks.REQUEST_BYTES, 2)
            code = f"from sglang_forks import *; become(json.loads({message!r}), {outputs})"
            fork = subprocess.run([sys.executable, "-c", code], cwd=WARM, pass_fds=outputs)
            for output in outputs:
                os.close(output)
            connection.send(str(fork.returncode).encode())
        assert launcher.communicate() == ("out\n", "error\n")
        assert launcher.returncode == 3
