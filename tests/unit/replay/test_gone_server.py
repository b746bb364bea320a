"""A replay whose server ends while streams run."""

import asyncio
import contextlib
import http.client
import json
import socket
import time
import urllib.request
from types import SimpleNamespace
from urllib.parse import urlsplit

from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay


def end_by_request(url):
    """Ask what ends the stub, and return when it has ended."""
    asked = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(f"{url}/generate", json.dumps(asked).encode(), timeout=60).close()
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 60).close()
            time.sleep(0.01)


def test_a_server_that_dies_leaves_records_and_ends_the_replay(
    ask, trace_of, stub_process, rows, monkeypatch
):
    # The others are due when the clock has jumped, once the server has ended; the last one is not.
    requests = [ask(output=10_000), *(ask(1000.0 + number) for number in range(30)), ask(9000.0)]
    jumped_s = 0.0
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + jumped_s)
    monkeypatch.setattr("tokenflow_sgl.lab.replay.wall.time", later)

    async def main(url):
        def observe(snapshot, wall_s):
            nonlocal jumped_s
            if snapshot.tokens_per_s > 0 and not jumped_s:
                end_by_request(url)
                jumped_s = 2000.0

        options = ReplayOptions(known_lengths=True)
        return await replay(trace_of(*requests), await find_target(url), options, observe=observe)

    with stub_process(failures={1: "die"}) as url:
        run = asyncio.run(main(url))
    found = rows(run)
    assert "the stream broke off" in found[0]["error"]
    assert found[0]["output_tokens"] > 0
    refused = [row for row in found if "no connection to the server" in (row["error"] or "")]
    assert len(refused) >= 20
    assert found[-1]["sent_s"] is None
    assert any("The server was gone: 20 connections" in each for each in run.info.invalid)
