"""The server helper, with a stand-in for SGLang that starts in a tenth of a second."""

import http.client
import os
import subprocess
import sys
import time

import pytest

from tokenflow_sgl.lab.demo.server import ServerError, SglangServer, free_port

SECONDS = 60.0
"""Until what a busy machine does late counts as not done."""
STAND_IN = """
import http.server, os, signal, subprocess, sys, time

print("arguments:", sys.argv[1:], flush=True)
if "--crash" in sys.argv:
    sys.exit("no such model")
if "--hang" in sys.argv:
    time.sleep(600)
if "--taken" in sys.argv:
    seen = sys.argv[sys.argv.index("--taken") + 1]
    if not os.path.exists(seen):
        open(seen, "w").close()
        port = sys.argv[sys.argv.index("--port") + 1]
        # As uvicorn says it; SGLang then waits for ever.
        print("[Errno 98] error while attempting to bind on address "
              f"('127.0.0.1', {port}): address already in use", flush=True)
        time.sleep(600)
if "--inner-taken" in sys.argv:
    seen = sys.argv[sys.argv.index("--inner-taken") + 1]
    if not os.path.exists(seen):
        open(seen, "w").close()
        # As PyTorch says it of the port at which SGLang's processes meet; SGLang then ends.
        sys.exit("DistNetworkError: The server socket has failed to listen on any "
                 "local network address. port: 23456, useIpv6: false, code: -98, name: EADDRINUSE, "
                 "message: address already in use" + 60 * "\\nand more")
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child:", child.pid, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked < 3 else 200)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path):
    """Make a server of the stand-in, which shadows the real package in the child process."""
    package = tmp_path / "path" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(STAND_IN)

    def make(*args, **options):
        env = {"PYTHONPATH": str(package.parent)}
        return SglangServer("m", args, env=env, log_path=tmp_path / "logs" / "a.log", **options)

    return make


def child_pid(server):
    return int(server.log_path.read_text().split("child: ")[1].split()[0])


def gone(pid):
    """Whether a process ends, in time (one that was not reaped counts as ended)."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                state = stat.read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def answers(server, within=SECONDS):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=within)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def test_it_is_healthy_inside_the_block_and_gone_after_it(server):
    with server("--max-total-tokens", "77") as running:
        pid, child = running.pid, child_pid(running)
        assert running.is_alive()
        assert answers(running)
        assert "'--model-path', 'm'" in running.log_tail()
        assert "'--max-total-tokens', '77'" in running.log_tail()
        assert running.url == f"http://127.0.0.1:{running.port}"
    assert not running.is_alive()
    assert running.pid is None
    assert gone(pid) and gone(child)


def test_an_exception_in_the_block_stops_it_too(server):
    with pytest.raises(KeyboardInterrupt), server() as running:
        pid, child = running.pid, child_pid(running)
        raise KeyboardInterrupt
    assert gone(pid) and gone(child)


def test_one_that_ignores_the_request_to_end_is_killed(server):
    with server("--stubborn", stop_timeout_s=0.2) as running:
        pid, child = running.pid, child_pid(running)
    assert gone(pid) and gone(child)


def test_a_crash_at_start_shows_the_log(server):
    with pytest.raises(ServerError, match="exit code 1 while starting") as error, server("--crash"):
        pytest.fail("must not get here")
    assert "no such model" in str(error.value)


def test_a_start_that_takes_too_long_is_ended(server):
    hanging = server("--hang", startup_timeout_s=0.5)
    with pytest.raises(ServerError, match=r"not healthy after 0\.5 s"), hanging:
        pytest.fail("must not get here")
    assert not hanging.is_alive()


def test_another_port_is_taken_where_one_is_taken_by_others(server, tmp_path):
    taken = server("--taken", str(tmp_path / "seen"))
    first = taken.port
    with taken as running:
        assert answers(running)
        assert running.port != first
        assert f":{running.port}" in running.url
        assert str(running.port) in running.command


def test_a_port_that_was_asked_for_is_not_replaced(server, tmp_path):
    asked = server("--taken", str(tmp_path / "seen"), port=free_port())
    with pytest.raises(ServerError, match=f"cannot listen at port {asked.port}"), asked:
        pytest.fail("must not get here")
    assert not asked.is_alive()


@pytest.mark.parametrize("asked", [False, True])
def test_a_port_that_sglang_has_chosen_is_replaced_where_one_is_taken(server, tmp_path, asked):
    port = free_port() if asked else None
    with server("--inner-taken", str(tmp_path / "seen"), port=port) as running:
        assert answers(running)
        assert (tmp_path / "seen").exists()
        assert running.port == port or not asked


def test_a_paused_server_is_silent_and_goes_on(server):
    with server() as running:
        running.pause()
        assert not answers(running, within=0.5)
        running.resume()
        assert answers(running)


def test_a_paused_server_can_be_stopped_gracefully(server):
    with server(stop_timeout_s=2 * SECONDS) as running:
        pid = running.pid
        running.pause()
        left = time.monotonic()
    assert gone(pid)
    assert time.monotonic() - left < SECONDS, "it did not have to be killed"


def test_it_dies_with_the_process_that_started_it(server):
    # That process is killed outright, as by the kernel or a test's timeout.
    planned = server()
    code = (
        "import sys, time; from tokenflow_sgl.lab.demo.server import SglangServer\n"
        "with SglangServer('m', log_path=sys.argv[1]) as running:\n"
        "    print(running.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(planned.log_path)],
        env={**os.environ, "PYTHONPATH": str(planned.log_path.parents[1] / "path")},
        stdout=subprocess.PIPE,
    ) as starter:
        pid = int(starter.stdout.readline())
        starter.kill()
    assert gone(pid)
