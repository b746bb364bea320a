"""The scheduler as its users meet it: flags, rates, metrics, aborts, and a policy that fails."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.client import Samples
from servers.tuned import tuned
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.demo.server import ServerError

pytestmark = pytest.mark.engine

SERVE = (str(Path(sys.executable).parent / "sglang"), "serve")
FAR = 30_000
"""Tokens that no test waits for: a client that is late still finds the request running."""
TRIES = 6
"""Bursts, one of which has to meet; clients that stand still send one request after the other."""
BAD_RATES: list[Any] = ["20", -1, 0, 1e9, True, {"rate": 5}, [5], None]


@pytest.fixture(scope="module")
def live(start, tmp_path_factory):
    """The shipped policy, switched on by a YAML file through `sglang serve`."""
    config = tmp_path_factory.mktemp("config") / "server.yaml"
    tuning = config.with_name("own.toml")
    tuning.write_text("[policy]\neta = 0.5\nswitch_factor = 2.5\n[engine]\nlongest_rest = 60\n")
    config.write_text(
        "scheduler: tokenflow\ntokenflow-default-rate: listening\ntokenflow-eta: 0.8\n"
        f"max-total-tokens: 1500\nhicache-ratio: 4\ntokenflow-tuning: {tuning}\n"
    )
    # Copies that are late are also timed, so that the server gets to know its link.
    env = {"TOKENFLOW_EMU_LATE_COPIES": "2"}
    with start("--config", str(config), launcher=SERVE, env=env) as served:
        yield served
        served.assert_clean()


def test_yaml_switches_it_on(live) -> None:
    log = live.log()
    assert "tokenflow scheduler is on: policy working-set, HiCache on" in log
    assert "default rate 5 tokens/s" in log
    assert "own.toml): eta = 0.8, switch_factor = 2.5, longest_rest = 60.0\n" in log


def test_a_burst_is_answered_as_by_stock_sglang(live, prompts, reference) -> None:
    for stream in (False, True):
        assert live.outputs(prompts * 3, stream=stream) == reference * 3


def bursts(live, prompts: list[list[int]], until: Callable[[], bool]) -> list[list[int]]:
    """Answers of the last one of some bursts beyond memory; there are no more once that holds."""
    how = {"max_new_tokens": 250, "custom_params": {"tokenflow_rate": 10}}
    for _ in range(TRIES):
        together: list[list[int]] = live.outputs(prompts, stream=True, **how)
        if until():
            return together
    raise AssertionError("no burst has had the effect that is looked for")


def test_a_burst_beyond_memory_preempts_and_answers_the_same(live, prompts) -> None:
    together = bursts(live, prompts, lambda: live.total("tokenflow:preemptions_total") > 0)
    for prompt, output in zip(prompts[:4], together, strict=False):
        assert live.outputs([prompt], max_new_tokens=250)[0] == output


def test_metrics_are_on_the_servers_own_page(live) -> None:
    listening = {"custom_params": {"tokenflow_class": "listening"}}
    live.outputs([[11, 12, 13]], stream=True, max_new_tokens=8, **listening)
    effective = ("tokenflow:effective_tokens_total", (("qos_class", "listening"),))

    def modes(samples: Samples) -> dict[str, float]:
        name = "tokenflow:mode"
        return {dict(labels)["mode"]: v for (n, labels), v in samples.items() if n == name}

    # A page may be read between two of the modes, of which one is set after the other.
    samples = live.metrics_once(
        lambda now: now.get(effective, 0.0) > 0.0 and sum(modes(now).values()) == 1.0
    )
    names = {name for name, _ in samples}
    expected = {
        "running_streams",
        "paused_streams",
        "waiting_streams",
        "working_set_streams",
        "preemptions_total",
        "resumes_total",
        "resume_recomputed_tokens_count",
        "buffer_seconds_bucket",
        "effective_tokens_total",
        "mode",
        "policy_pass_seconds_count",
        "policy_errors_total",
    }
    assert {f"tokenflow:{name}" for name in expected} <= names
    assert set(modes(samples)) == {"idle", "working-set", "fallback"}


def test_the_doctor_examines_it(live, prompts) -> None:
    def both_directions() -> bool:
        return len([name for name, _ in live.metrics() if name.endswith(":link_queue_tokens")]) == 2

    if not both_directions():  # of the bursts so far none has displaced a stream for long enough
        bursts(live, prompts, both_directions)
    result = CliRunner().invoke(app, ["doctor", "--live", live.server.url], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    preemptions = next(line for line in lines if line.startswith("preemptions"))
    assert "none" not in preemptions
    for direction in ("to the host", "back"):
        link = next(line for line in lines if line.startswith(direction))
        assert "tokens/s" in link and "GB/s" in link


@pytest.mark.parametrize("rate", BAD_RATES, ids=repr)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_rates_get_http_400_with_a_sentence(live, rate, stream) -> None:
    params = {"custom_params": {"tokenflow_rate": rate}, "max_new_tokens": 4}
    answer = live.post(
        "/generate", {"input_ids": [5, 6], "sampling_params": params, "stream": stream}
    )
    assert answer.status == 400, answer
    assert "tokenflow_rate is" in json.dumps(answer.body)
    assert "tokens per second" in json.dumps(answer.body)


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_get_http_400(live, rate) -> None:
    """By SGLang's own parser; the offline engine meets our check (see the unit tests)."""
    params = {"custom_params": {"tokenflow_rate": rate}, "max_new_tokens": 4}
    answer = live.post("/generate", {"input_ids": [5, 6], "sampling_params": params})
    assert answer.status == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_bad_rates_on_the_openai_routes(live, path, stream) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "a"}
    body = {"model": "tiny", "max_tokens": 4, "stream": stream, **asked}
    bad = live.post(path, {**body, "custom_params": {"tokenflow_rate": -3}})
    assert bad.status == 400
    assert "tokenflow_rate is -3" in json.dumps(bad.body)
    unknown = live.post(path, {**body, "custom_params": {"tokenflow_class": "skimming"}})
    assert unknown.status == 400
    assert "known classes are agent, listening, reading" in json.dumps(unknown.body)
    good = live.post(path, {**body, "custom_params": {"tokenflow_rate": 20}})
    assert good.status == 200


def test_other_streams_do_not_notice_bad_rates(live, prompts, reference) -> None:
    bad = {"custom_params": {"tokenflow_rate": "fast"}}
    calls = [lambda p=p: live.generate(p, stream=True) for p in prompts]
    calls += [lambda p=p: live.generate(p, **bad) for p in prompts]
    answers = live.together(calls)
    assert [a.body["output_ids"] for a in answers[:12]] == reference
    assert {a.status for a in answers[12:]} == {400}


@pytest.mark.slow
def test_aborts_return_what_was_generated(start, prompts, reference) -> None:
    """Of a waiting, a paused and a running stream, to clients that do not stream."""
    never, held, runs, *churned = ([7, 8, 9], *prompts)
    of = {tuple(prompt): output for prompt, output in zip(prompts, reference, strict=True)}
    assert not {len(held), len(never)} & {len(prompt) for prompt in (runs, *churned)}
    env = {
        "TOKENFLOW_TEST_HELD": str(len(held)),
        "TOKENFLOW_TEST_CHURNED": ",".join(str(len(p)) for p in churned if len(p) != len(runs)),
    }
    flags = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:HoldMarked")
    with start(*flags, "--max-total-tokens", "40000", "--hicache-ratio", "2", env=env) as served:

        def ask(rid: str, prompt: list[int]) -> Any:
            return served.generate(prompt, rid=rid, max_new_tokens=FAR)

        def abort(*rids: str) -> Any:
            return [served.post("/abort_request", {"rid": rid}) for rid in rids][-1]

        def abort_each_where_it_is() -> Any:
            # Only one of them is ever paused; then the others can be told apart.
            for name in ("paused_streams", "running_streams", "waiting_streams"):
                served.wait_for(name, 1)
            abort("waiting", "paused")
            # Of the paused one up to 20 may not have been counted yet.
            more = served.total("tokenflow:output_tokens_total") + 64 + 20 + 1
            served.wait_for("output_tokens_total", more)
            return abort("running")

        waiting, paused, running, *_ = served.together(
            [
                lambda: ask("waiting", never),
                lambda: ask("paused", held),
                # Runs all the while: a policy that serves no stream would be overruled.
                lambda: ask("running", runs),
                abort_each_where_it_is,
            ]
        )
        for answer in (waiting, paused, running):
            assert answer.body["meta_info"]["finish_reason"]["type"] == "abort", answer
        assert waiting.body.get("output_ids", []) == []
        got = paused.body["output_ids"]
        assert 10 <= len(got) <= 20, "paused after ten tokens, and returned with them"
        assert got == of[tuple(held)][: len(got)]
        got = running.body["output_ids"]
        assert len(got) > 64
        assert got[:64] == of[tuple(runs)]

        # Streams that drain for a third of their time, aborted one after the other.
        calls = [lambda n=n, p=p: ask(f"churn-{n}", p) for n, p in enumerate(churned)]

        def all_are_here(samples: Samples) -> bool:
            levels = [samples[f"tokenflow:{name}_streams", ()] for name in ("running", "paused")]
            return sum(levels) == len(churned)

        def abort_all() -> Any:
            served.metrics_once(all_are_here)
            # What was computed by then has been counted: from now on each gets a token and more.
            more = served.total("tokenflow:output_tokens_total") + 20 * len(churned)
            served.wait_for("output_tokens_total", more)
            for n in range(len(churned)):
                answer = abort(f"churn-{n}")
                time.sleep(0.037)
            return answer

        calls.append(abort_all)
        for prompt, answer in zip(churned, served.together(calls), strict=False):
            assert answer.body["meta_info"]["finish_reason"]["type"] == "abort", answer
            got = answer.body["output_ids"]
            assert got, "what was generated comes back"
            assert got[:64] == of[tuple(prompt)][: len(got)]
        # All others are served as before.
        assert served.outputs(prompts[1:]) == reference[1:]
        served.assert_clean()


@pytest.fixture(scope="module")
def failing_and_stock(start):
    """A server whose policy always fails, and one without the flag, started at once."""
    flags = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:Fails")
    servers = start(*flags, "--max-total-tokens", "1500"), start("--max-total-tokens", "4000")
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield list(pool.map(stack.enter_context, servers))


def test_a_policy_that_always_fails(failing_and_stock, prompts, reference) -> None:
    served, _ = failing_and_stock
    assert served.outputs(prompts, stream=True) == reference
    errors = served.total("tokenflow:policy_errors_total")
    assert errors > 10
    assert served.outputs(prompts) == reference
    assert served.total("tokenflow:policy_errors_total") > errors
    assert served.log().count("tokenflow policy forced:Fails failed") == 1
    name = "tokenflow:mode_changes_total"  # the mode itself is idle soon after the last answer
    modes = {dict(labels)["mode"] for (each, labels), v in served.metrics().items() if each == name}
    assert "fallback" in modes and "working-set" not in modes
    served.flush_when_idle()


def test_without_the_flag_nothing_is_replaced(failing_and_stock, prompts, reference) -> None:
    _, served = failing_and_stock
    body = {"custom_params": {"tokenflow_rate": "fast"}}
    assert served.generate(prompts[0], **body).status == 200
    assert served.outputs(prompts) == reference
    assert served.metrics() == {}
    assert "tokenflow scheduler is on" not in served.log()


def test_a_wrong_option_stops_the_start_with_a_sentence(start) -> None:
    """One of SGLang's and one of ours; test_flags.py has the rest."""

    def refused(flags: tuple[str, ...], sentence: str) -> None:
        wrong = start("--scheduler", "tokenflow", *flags)
        with pytest.raises(ServerError, match=sentence), wrong:
            pass

    wrong = (
        (("--disable-radix-cache",), "does not work with --disable-radix-cache"),
        (("--tokenflow-eta", "99"), "eta is 99.0; allowed is 0.1 to 10"),
        (("--tokenflow-swi", "3"), r"has moved: write switch_factor = 3 below \[policy\] in"),
        (tuned(cycle=99), r"tuning.toml: \[policy\] cycle is 99; allowed is 0.001 to 60"),
    )
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(refused, *zip(*wrong, strict=True)))
