"""The examples that need SGLang, as users run them: the clients, the engine, and the own policy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from servers.client import TOKENS, Served

from tokenflow_sgl.demo.server import free_port

pytestmark = pytest.mark.engine

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120.0
LONG = 250


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
    end = time.monotonic() + 30.0
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


def wait_for_running(served, count: int) -> None:
    """Until so many requests run: on a fast machine the long ones have ended after a second."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{served.server.url}/v1/loads", timeout=30) as response:
            (load,) = json.load(response)["loads"]
        if load["num_running_reqs"] >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{count} requests never ran together")


def test_the_openai_client_shows_why_a_rate_is_refused(served) -> None:
    client = [sys.executable, EXAMPLES / "openai_client.py", "--url", served.server.url]
    done = subprocess.run([*client, "--rate", "5000"], capture_output=True, text=True, timeout=60)
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
    how = ("--max-tokens", "300", "--tbt", "0.2", "Hello")
    pattern = r"\[(\d+) pieces of text; .* ([\d.]+) s \(median\), ([\d.]+) s at least"
    *even, last = ask("even_stream.py", *how).rstrip().splitlines()
    pieces, median, least = map(float, re.search(pattern, last).groups())
    *plain, without = ask("even_stream.py", "--without", *how).rstrip().splitlines()
    assert even == plain
    # What is generated in less than a fifth of a second each has no gap shorter than that.
    assert pieces > 2 and median > 0.1 and least > 0.05
    assert float(re.search(pattern, without).group(1)) > pieces, "the control"
    done = [sys.executable, EXAMPLES / "even_stream.py", "--url", "http://127.0.0.1:1"]
    assert subprocess.run(done, capture_output=True, timeout=60).returncode == 1


def test_a_stream_rests_while_its_reader_looks_away(ask) -> None:
    *_, last = ask("looking_away.py", "--away", "3", "--max-tokens", "300").splitlines()
    found = re.search(r"10 pieces of text, .* (\d+) pieces came meanwhile, (\d+) after it", last)
    assert found, last
    meanwhile, after = map(int, found.groups())
    # What was under way when the reader looked away, and no more.
    assert meanwhile < 100 < after


def test_the_offline_engine_answers_every_prompt(warm, models) -> None:
    import offline_engine

    if psutil.virtual_memory().available < 11 * 2**30:
        pytest.skip("with less than 10 GiB of host memory HiCache has to be told its size")

    said = printed(
        *warm,
        EXAMPLES / "offline_engine.py",
        *("--model-path", str(models / "qwen3"), "--max-tokens", "12"),
        SGLANG_PLATFORM="tokenflow_emu",
        HF_HUB_OFFLINE="1",
    )
    for prompt in offline_engine.PROMPTS:
        [answer] = [line for line in said.splitlines() if line.startswith(prompt)]
        assert len(answer.removeprefix(prompt).split()) > 5, said


def test_the_own_policy_preempts_and_changes_no_answer(start, served, prompts) -> None:
    alone = [served.outputs([prompt])[0] for prompt in prompts]
    flags = ("--scheduler", "tokenflow", "--tokenflow-policy", "own_policy:ShortestFirst")
    memory = ("--max-total-tokens", "704", "--hicache-ratio", "4")
    with start(*flags, *memory, env={"PYTHONPATH": str(EXAMPLES)}) as policed:

        def ask(number: int) -> list[int]:
            """The first streams are long; the others come while these run, and have less to say."""
            more = {"max_new_tokens": LONG} if number < 4 else {}
            if number >= 4:
                wait_for_running(policed, 4)
            answer = policed.generate(prompts[number], stream=True, **more)
            assert answer.status == 200, answer
            return answer.body["output_ids"]

        outputs = policed.together([lambda n=n: ask(n) for n in range(len(prompts))])
        assert [output[:TOKENS] for output in outputs] == alone
        assert policed.total("tokenflow:preemptions_total") > 0
        assert policed.total("tokenflow:policy_errors_total") == 0
        policed.assert_clean()


@pytest.fixture
def fleet(start):
    """Two servers that have not served yet, and the proxy in front of them."""
    with start("--scheduler", "tokenflow") as one, start("--scheduler", "tokenflow") as two:
        port = free_port()
        proxy = Served(SimpleNamespace(url=f"http://127.0.0.1:{port}"))
        command = [sys.executable, EXAMPLES / "headroom_proxy.py", "--port", str(port)]
        process = subprocess.Popen([*command, one.server.url, two.server.url])
        try:
            wait_for_health(proxy)
            yield proxy, one, two
        finally:
            process.terminate()
            process.wait()
        for server in (one, two):
            server.assert_clean()


def wait_for_health(proxy) -> None:
    """Until the proxy listens and knows a server."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{proxy.server.url}/health", timeout=30) as response:
                assert response.status == 200
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the proxy never became healthy")


def test_two_servers_answer_through_the_proxy_as_each_does_alone(fleet, reference, prompts) -> None:
    proxy, *servers = fleet
    assert proxy.outputs(prompts, stream=True) == reference
    tokens = sum(map(len, reference))
    end = time.monotonic() + SECONDS
    while sum(served := [tokens_of(server) for server in servers]) < tokens:
        assert time.monotonic() < end, f"{served} of {tokens} tokens"
        time.sleep(0.1)  # metrics are sampled once a second
    assert min(served) >= TOKENS, "each has answered some; a server's own warm-up is shorter"


def tokens_of(server) -> float:
    """Tokens that a server has delivered."""
    return server.total("tokenflow:output_tokens_total")


def test_a_client_that_leaves_the_proxy_leaves_its_server(fleet, prompts) -> None:
    proxy, *servers = fleet
    tokens = 3000
    body = {
        "input_ids": prompts[0],
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
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


@pytest.mark.parametrize("rid", ["mine", None], ids=["named", "unnamed"])
def test_what_is_said_of_a_stream_reaches_its_server_through_the_proxy(fleet, prompts, rid) -> None:
    proxy, *_ = fleet
    sampling = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
    body = {"input_ids": prompts[0], "stream": True, "sampling_params": sampling, "rid": rid}

    def told(method: str, name: str, **said: float) -> int:
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
        assert told("POST", name, rate=0, weight=2) == 204
        assert told("POST", name, weight=20) == 400
        assert told("DELETE", name) == 204
        answer = [line for line in response.read().splitlines() if line.startswith(b"data: {")]
    ended = json.loads(answer[-1].removeprefix(b"data: "))
    assert ended["meta_info"]["finish_reason"]["type"] == "abort"
    assert told("POST", name, rate=5) == 404
