"""Replays against the stub server, in one event loop or with the stub in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys

import pytest
from replaying import stub as stub_module

from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceRequest


@pytest.fixture
def stub():
    """The stub server's module."""
    return stub_module


@pytest.fixture
def ask():
    """A request of a trace: 20 tokens of prompt, 5 of answer, read at 10 tokens/s."""

    def make(arrival_s=0.0, prompt=20, output=5, rate=10.0, **more):
        return TraceRequest(arrival_s, prompt, output, rate, **more)

    return make


@pytest.fixture
def trace_of():
    def make(*requests, **more):
        return Trace("small", requests, Accounting(len(requests), len(requests)), **more)

    return make


@pytest.fixture
def on_stub(trace_of):
    """Replay requests against a stub that behaves as told; returns the stub and the run.

    Its answers end by their limit unless told otherwise, so that is their length by default.
    """

    def run(requests, options=None, *, updates=(), how=None, known_lengths=True, **behaviour):
        sent = dataclasses.replace(options or ReplayOptions(), known_lengths=known_lengths)

        async def main():
            async with stub_module.serve(stub_module.Behaviour(**behaviour)) as (server, url):
                target = await find_target(url)
                trace = trace_of(*requests, priority_updates=updates)
                return server, await replay(trace, target, sent, **(how(server) if how else {}))

        return asyncio.run(main())

    return run


@pytest.fixture
def stub_process():
    """Start the stub as a program; gives its URL for as long as the block lasts."""

    @contextlib.contextmanager
    def start(**behaviour):
        process = subprocess.Popen(
            [sys.executable, stub_module.__file__, json.dumps(behaviour)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    return start


@pytest.fixture
def rows():
    """A run's requests as dictionaries, each with its tokens' times under `times`."""

    def read(run):
        found = run.requests.to_pylist()
        for row in found:
            row["times"] = []
        for token in run.tokens.to_pylist():
            found[token["request"]]["times"].append(token["time_s"])
        return found

    return read
