"""The examples that need SGLang, as users run them: the clients, the engine, and the own policy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from headroom_proxy import FIELD
from servers.client import TOKENS, Served

from tokenflow_sgl.lab.demo.server import free_port

pytestmark = pytest.mark.engine

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120.0
LONG = 250
FAR = 30_000
"""Tokens of an answer that no machine completes before it is broken off."""
MANY = 200
"""Streams that fill any server."""
TRIES = 6
"""A machine that stands still for a second lets whole answers go by."""


def printed(*command: str | Path, **env: str) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(
        [*command], capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served(start):
    with start("--scheduler", "tokenflow") as running:
        yield running
        running.assert_clean()


@pytest.fixture
def ask(served):
    """`ask(file, *options)`: what a client prints that asks the server."""

    def client(name: str, *options: str) -> str:
        return printed(sys.executable, EXAMPLES / name, "--url", served.server.url, *options)

    return client


def wait_for_a_stream(served, qos_class: str) -> None:
    """Until the server has counted a stream of this class; metrics are sampled once a second."""
    end = time.monotonic() + 60.0
    while not any(
        value and name == "tokenflow:finished_streams_total" and ("qos_class", qos_class) in labels
        for (name, labels), value in served.metrics().items()
    ):
        assert time.monotonic() < end, f"no stream of class {qos_class}"
        time.sleep(0.1)


def test_the_openai_client_states_a_rate(ask, served) -> None:
    *answer, last = ask("openai_client.py", "--max-tokens", "24", "Hello").rstrip().splitlines()
    assert len(" ".join(answer).split()) > 10
    assert re.fullmatch(r"\[first text after [\d.]+ s, answer complete after [\d.]+ s\]", last)
    wait_for_a_stream(served, "custom")


def wait_for_running(served, count: int, over: threading.Event) -> None:
    """Until so many requests run, or it is over: some of them may end before one looks."""
    end = time.monotonic() + SECONDS
    while not over.is_set():
        assert time.monotonic() < end, f"{count} requests never ran together"
        (load,) = told(served, "/v1/loads")["loads"]
        if load["num_running_reqs"] >= count:
            return
        time.sleep(0.02)


def test_the_openai_client_shows_why_a_rate_is_refused(served) -> None:
    client = [sys.executable, EXAMPLES / "openai_client.py", "--url", served.server.url]
    refused = [*client, "--rate", "5000"]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    assert "tokenflow_rate is 5000" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_voice_listens(ask, served) -> None:
    spoken = ask("voice.py", "--max-tokens", "24", "Hello")
    words, silences = re.search(r"\[(\d+) words, silent (\d+) times", spoken).groups()
    assert int(words) > 10
    assert spoken.count("[silent for") == int(silences)
    wait_for_a_stream(served, "listening")


def test_a_client_without_a_buffer_gets_an_even_stream(ask) -> None:
    def asked(*options: str) -> tuple[list[str], int]:
        """The answer, and the number of pieces in which it came."""
        how = ("--max-tokens", "300", "--tbt", "0.2", "Hello")
        *answer, last = ask("even_stream.py", *options, *how).rstrip().splitlines()
        told = r"\[(\d+) pieces of text(; between .* what was left|: too few to say .*)\]"
        return answer, int(re.fullmatch(told, last)[1])

    began = time.monotonic()
    even, pieces = asked()
    # One each fifth of a second, and one with the rest: in all that time no more can have come,
    # whatever was late. Gaps say nothing: to a client that is late, several pieces come at once.
    assert pieces <= (time.monotonic() - began) / 0.2 + 3
    for _ in range(TRIES):
        plain, without = asked("--without")
        assert even == plain
        if without > pieces:
            break
    else:
        raise AssertionError(f"the control came in {without} pieces, the even stream in {pieces}")
    done = [sys.executable, EXAMPLES / "even_stream.py", "--url", "http://127.0.0.1:1"]
    assert subprocess.run(done, capture_output=True, timeout=SECONDS).returncode == 1


@pytest.mark.slow
def test_a_stream_rests_while_its_reader_looks_away(ask, served) -> None:
    rests = ("tokenflow:preemptions_total", (("cause", "rest"),))
    before = served.metrics().get(rests, 0.0)
    *_, last = ask("looking_away.py", "--away", "3", "--max-tokens", "1000").splitlines()
    found = re.search(r"10 pieces of text, .* (\d+) pieces came meanwhile, (\d+) after it", last)
    assert found, last
    meanwhile, after = map(int, found.groups())
    # Before it rested it brought what was under way, which on a busy machine may be much.
    assert after > 0, f"{meanwhile} pieces came while the reader was away"
    assert served.metrics()[rests] == before + 1


def test_the_offline_engine_answers_every_prompt(warm, models) -> None:
    import offline_engine

    too_little = "with less than 10 GiB of host memory HiCache has to be told its size"
    if psutil.virtual_memory().available < 11 * 2**30:
        pytest.skip(too_little)
    try:
        said = printed(
            *warm,
            EXAMPLES / "offline_engine.py",
            *("--model-path", str(models / "qwen3"), "--max-tokens", "12"),
            SGLANG_PLATFORM="tokenflow_emu",
            HF_HUB_OFFLINE="1",
        )
    except AssertionError as failed:
        if "No host memory is left for HiCache" in str(failed):  # others have taken it meanwhile
            pytest.skip(too_little)
        raise
    for prompt in offline_engine.PROMPTS:
        [answer] = [line for line in said.splitlines() if line.startswith(prompt)]
        assert len(answer.removeprefix(prompt).split()) > 5, said


@pytest.mark.slow
def test_the_own_policy_preempts_and_changes_no_answer(start, served, prompts) -> None:
    alone = [served.outputs([prompt])[0] for prompt in prompts]
    flags = ("--scheduler", "tokenflow", "--tokenflow-policy", "own_policy:ShortestFirst")
    memory = ("--max-total-tokens", "704", "--hicache-ratio", "4")
    with start(*flags, *memory, env={"PYTHONPATH": str(EXAMPLES)}) as policed:

        def ask(number: int, over: threading.Event) -> list[int]:
            """The first streams are long; the others come while these run, and have less to say."""
            more = {"max_new_tokens": LONG} if number < 4 else {}
            if number >= 4:
                wait_for_running(policed, 4, over)
            answer = policed.generate(prompts[number], stream=True, **more)
            over.set()
            assert answer.status == 200, answer
            return answer.body["output_ids"]

        for _ in range(TRIES):
            over = threading.Event()
            calls = [lambda n=n, over=over: ask(n, over) for n in range(len(prompts))]
            outputs = policed.together(calls)
            assert [output[:TOKENS] for output in outputs] == alone
            if policed.total("tokenflow:preemptions_total") > 0:
                break
        else:
            raise AssertionError("no stream was ever preempted")
        assert policed.total("tokenflow:policy_errors_total") == 0
        policed.assert_clean()


@contextlib.contextmanager
def proxied(*servers: Served) -> Iterator[Served]:
    """The proxy in front of servers, once it knows all of them."""
    port = free_port()
    proxy = Served(SimpleNamespace(url=f"http://127.0.0.1:{port}"))
    command = [sys.executable, EXAMPLES / "headroom_proxy.py", "--port", str(port)]
    process = subprocess.Popen([*command, *(each.server.url for each in servers)])
    try:
        wait_for_health(proxy, servers=len(servers))
        yield proxy
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def fleet(start):
    """Two servers that have not served yet, and the proxy in front of them."""
    with start("--scheduler", "tokenflow") as one, start("--scheduler", "tokenflow") as two:
        with proxied(one, two) as proxy:
            yield proxy, one, two
        for server in (one, two):
            server.assert_clean()


def told(server: Served, path: str) -> Any:
    """What a server or the proxy answers to a question, as JSON."""
    with urllib.request.urlopen(f"{server.server.url}{path}", timeout=30) as response:
        return json.load(response)


def wait_for_health(proxy, servers: int) -> None:
    """Until the proxy listens and knows so many servers."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if len(told(proxy, "/health")["servers"]) == servers:
                return
        time.sleep(0.1)
    raise AssertionError("the proxy never became healthy")


def test_two_servers_answer_through_the_proxy_as_each_does_alone(fleet, reference, prompts) -> None:
    """Whichever has more headroom: on a busy machine one of them seems slow, and gets nothing.

    So streams are left running, of fast readers, until they fill one server and the other has some.
    A full one lets others wait until these end, so only the last is read: its server was empty.
    """
    proxy, *servers = fleet
    assert proxy.outputs(prompts, stream=True) == reference
    with contextlib.ExitStack() as running:
        for number in range(MANY):
            prompt = prompts[number % len(prompts)]
            stream = running.enter_context(asked_far(proxy, prompt))
            wait_for_streams(servers, number + 1)
            if all(map(streams_on, servers)):
                break
        else:
            raise AssertionError(f"one server got them all: {told(proxy, '/health')}")
        assert tokens_of(stream, TOKENS) == reference[number % len(prompts)]


def wait_for_streams(servers: list[Served], count: int) -> None:
    """Until the servers say that they have so many streams together."""
    end = time.monotonic() + SECONDS
    while sum(map(streams_on, servers)) < count:
        assert time.monotonic() < end, f"fewer than {count} streams"
        time.sleep(0.05)


def asked_far(server: Served, prompt: list[int], **more: Any) -> Any:
    """An answer that no machine completes before it is broken off; its reader reads fast."""
    sampling = {"temperature": 0, "max_new_tokens": FAR, "ignore_eos": True, **more}
    body = {
        "input_ids": prompt,
        "stream": True,
        "sampling_params": {**sampling, "custom_params": {"tokenflow_rate": 1000}},
    }
    request = urllib.request.Request(
        f"{server.server.url}/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=SECONDS)


def tokens_of(stream: Any, count: int) -> list[int]:
    """The first tokens of a stream, once it has so many."""
    for line in stream:
        if line.startswith(b"data: {"):
            output: list[int] = json.loads(line.removeprefix(b"data: "))["output_ids"]
            if len(output) >= count:
                return output[:count]
    raise AssertionError("it has ended")


def streams_on(server: Served) -> int:
    """Streams that a server has, paused ones among them."""
    return sum(
        load["num_running_reqs"] + load["num_waiting_reqs"]
        for load in told(server, "/v1/loads")["loads"]
    )


@pytest.mark.slow
def test_a_client_that_leaves_the_proxy_leaves_its_server(fleet, prompts) -> None:
    proxy, *servers = fleet
    body = {
        "input_ids": prompts[0],
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": FAR, "ignore_eos": True},
    }
    request = urllib.request.Request(
        f"{proxy.server.url}/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        assert response.readline().startswith(b"data: ")
    for server in servers:
        server.flush_when_idle()
    aborted = [server.sglang_total("sglang:num_aborted_requests_total") for server in servers]
    assert sorted(aborted) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("rid", ["mine", None], ids=["named", "unnamed"])
def test_what_is_said_of_a_stream_reaches_its_server_through_the_proxy(fleet, prompts, rid) -> None:
    proxy, *_ = fleet
    sampling = {"temperature": 0, "max_new_tokens": FAR, "ignore_eos": True}
    body = {"input_ids": prompts[0], "stream": True, "sampling_params": sampling, "rid": rid}

    def tell(method: str, name: str, **said: float) -> int:
        request = urllib.request.Request(
            f"{proxy.server.url}/tokenflow/streams/{name}",
            data=json.dumps(said).encode() if said else None,
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    request = urllib.request.Request(
        f"{proxy.server.url}/generate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        first = json.loads(response.readline().removeprefix(b"data: "))
        name = first["meta_info"]["id"]
        assert rid in (None, name)
        assert tell("POST", name, rate=0, weight=2) == 204
        assert tell("POST", name, weight=20) == 400
        assert tell("DELETE", name) == 204
        answer = [line for line in response.read().splitlines() if line.startswith(b"data: {")]
    ended = json.loads(answer[-1].removeprefix(b"data: "))
    assert ended["meta_info"]["finish_reason"]["type"] == "abort"
    assert tell("POST", name, rate=5) == 404


@pytest.mark.slow
def test_of_a_server_with_two_ranks_the_proxy_knows_both(start, prompts) -> None:
    """The ranks have measured costs of their own, so they seldom have the same headroom."""
    with start("--scheduler", "tokenflow", "--dp-size", "2") as server:
        for rank in (0, 1):
            assert server.generate(prompts[rank], routed_dp_rank=rank).status == 200
        with proxied(server) as proxy:
            end = time.monotonic() + SECONDS
            while True:  # the proxy reads once a second, and ranks that are idle stay as they are
                loads = {load["dp_rank"]: load for load in told(server, "/v1/loads")["loads"]}
                (tokens,) = told(proxy, "/health")["servers"].values()
                left = [loads[rank][FIELD] for rank in (0, 1)]
                if None not in left and tokens == 2 * min(left):
                    break
                assert time.monotonic() < end, f"{tokens} of {left}"
                time.sleep(0.1)
            since = {rank: load["timestamp"] for rank, load in loads.items()}
            while not all(
                load["timestamp"] > since[load["dp_rank"]]
                for load in told(server, "/v1/loads")["loads"]
            ):  # else it would take an idle rank for one that stands still
                assert time.monotonic() < end, since
                time.sleep(0.1)
        server.assert_clean()
