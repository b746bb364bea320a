"""Servers behind smg, the gateway itself: what it reads, and what reaches them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from gateways.shepherd import shepherd
from servers.client import IDLE_SECONDS, TOKENS, Served
from servers.meeting import pair

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HOLD = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked")
HELD = {"custom_params": {"tokenflow_rate": 7.0}, "max_new_tokens": 40}
"""Paused after ten tokens, for good."""
ALONE = {"max_new_tokens": TOKENS, "temperature": 0}
CROWD = 40
"""Readers that are too many for a server."""
MANY = 10
"""More than the waiting requests from which on smg takes a server for overloaded."""
SHED = ("--policy", "least_load", "--worker-overload-shed")
"""It refuses what it would have to send to an overloaded server."""
IN_TURN = ("--policy", "round_robin", "--disable-worker-overload-protection")
"""Each server in turn: by default smg leaves out the overloaded ones, once it has seen them so."""


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=IDLE_SECONDS)


def load_seen(gateway: str) -> dict[str, Any]:
    """What the gateway last read of its only server's load."""
    with urllib.request.urlopen(f"{gateway}/workers", timeout=IDLE_SECONDS) as answer:
        (worker,) = json.load(answer)["workers"]
    (seen,) = worker["engine_load"]["loads"] if worker.get("engine_load") else ({},)
    return dict(seen)


def wait_for_load(gateway: str, **values: int) -> dict[str, Any]:
    end = time.monotonic() + IDLE_SECONDS
    while True:
        seen = load_seen(gateway)
        if all(seen.get(name) == value for name, value in values.items()):
            return seen
        assert time.monotonic() < end, seen
        time.sleep(0.1)


@contextlib.contextmanager
def streams(gateway: str, prompts: list[list[int]]) -> Iterator[None]:
    """Streams that are asked for through the gateway, and left at the end."""
    with contextlib.ExitStack() as left:
        for prompt in prompts:
            body = {"input_ids": prompt, "stream": True, "sampling_params": HELD}
            left.enter_context(contextlib.closing(post(f"{gateway}/generate", body)))
        yield


def test_paused_streams_do_not_make_a_server_overloaded(start, prompts, reference, tmp_path):
    with start(*HOLD) as served, shepherd(tmp_path, [served.server.url], *SHED) as smg:
        gateway = smg.url
        with streams(gateway, [prompts[0]] * MANY):
            served.wait_until("paused_streams", MANY)  # so the rates came through
            seen = wait_for_load(gateway, num_running_reqs=MANY, num_waiting_reqs=0)
            assert seen["token_usage"] < 0.8
            body = {"input_ids": prompts[1], "sampling_params": ALONE}
            with post(f"{gateway}/generate", body) as answer:
                assert json.load(answer)["output_ids"] == reference[1]
        # Who leaves the gateway has left the server.
        served.wait_until("paused_streams", 0)
        wait_for_load(gateway, num_running_reqs=0, num_waiting_reqs=0)
        served.assert_clean()


def test_what_one_server_refuses_another_takes(start, prompts, tmp_path) -> None:
    """smg tries another server, and hands the refusal on where each of them refuses."""
    refusing = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "2")
    refusing += ("--tokenflow-max-wait", "2")
    crowd = {
        **{"temperature": 0, "ignore_eos": True, "max_new_tokens": 400},
        "custom_params": {"tokenflow_rate": 200, "tokenflow_max_wait": 0},
    }

    @contextlib.contextmanager
    def busy(*servers: Served) -> Iterator[None]:
        """Many readers on each of these, until they have their answers."""
        asks = [partial(each.generate, prompts[0], **crowd) for each in servers]
        waits = threading.Thread(target=servers[0].together, args=(asks * CROWD,))
        waits.start()
        for each in servers:
            each.wait_for("expected_wait_seconds", 2.5)
        yield
        waits.join()

    def asked(gateway: str) -> tuple[int, str | None]:
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 2}}
        try:
            with post(f"{gateway}/generate", body) as answer:
                return answer.status, None
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Retry-After"]

    with start(*refusing) as one, start(*refusing) as two:
        urls = [one.server.url, two.server.url]
        with shepherd(tmp_path, urls, *IN_TURN) as smg:
            for each in (one, two):
                each.generate(prompts[0])  # so that it knows what a request is like
            with busy(one):
                assert [asked(smg.url) for _ in range(4)] == [(200, None)] * 4
            assert one.total("tokenflow:refused_requests_total") > 0
            with busy(one, two):
                status, after = asked(smg.url)
            assert status == 429
            assert int(after or 0) >= 1


def test_a_pair_behind_it_says_what_one_server_says(start, prompts, reference, tmp_path) -> None:
    pausing = ("--tokenflow-policy", "forced:PreemptEvery")
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "4000")
    with pair(start, *flags, decode=pausing) as both:
        first, then = both.prefill.server.url, both.decode.server.url
        options = ("--pd-disaggregation", "--prefill", first, str(both.port), "--decode", then)
        with shepherd(tmp_path, (), *options) as smg:
            front = Served(SimpleNamespace(url=smg.url))  # type: ignore[arg-type]
            assert front.outputs(prompts, stream=True) == reference
        assert both.decode.total("tokenflow:preemptions_total") > 10, "the test must disturb"
        both.decode.assert_clean()


SAYS: dict[str, Any] = {
    "/server_info": {"model_path": "m", "served_model_name": "m", "dp_size": 1},
    "/model_info": {"model_path": "m", "is_generation": True},
    "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model"}]},
    "/v1/loads": {
        "dp_rank_count": 1,
        "loads": [{"dp_rank": 0, "num_running_reqs": 1, "num_waiting_reqs": MANY}],
        "aggregate": {"total_running_reqs": 1, "total_waiting_reqs": MANY, "total_reqs": 11},
    },
}


class Overloaded(BaseHTTPRequestHandler):
    """A server whose paused streams are said to wait."""

    def do_GET(self) -> None:
        body = json.dumps(SAYS.get(self.path.partition("?")[0], {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_streams_that_wait_do(tmp_path) -> None:
    """The control: the gateway refuses where a server says so."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Overloaded) as worker:
        threading.Thread(target=worker.serve_forever, daemon=True).start()
        try:
            with shepherd(tmp_path, [f"http://127.0.0.1:{worker.server_port}"], *SHED) as smg:
                wait_for_load(smg.url, num_waiting_reqs=MANY)
                with pytest.raises(urllib.error.HTTPError, match="503"):
                    post(f"{smg.url}/generate", {"text": "?", "sampling_params": {}})
        finally:
            worker.shutdown()
