"""Tenants on a live server: each is served its own text, and none keeps another waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from servers.client import Answer, Served
from servers.tuned import CHECK_RANKS, tuned
from told_streams import Reading, told

from tokenflow_sgl.engine.sglang.version import at_least

pytestmark = [pytest.mark.engine, pytest.mark.slow]

HEADER = "x-llm-d-fairness-id"
FILE = """
[tenants.mine]
weight = 1

[tenants.capped]
streams = 2
"""
POOL = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "4")
POOL += tuned(min_run=0.05)
APART = ("--tokenflow-tenant-by", f"header:{HEADER}")
CROWD = 48
"""Streams of the tenant that asks for too much: they need ten times the memory."""
NEARLY_ALL = 40
"""Of these: measured are 48 with tenants, and 0 to 13 without."""
RATE = 30
"""Tokens per second that each of the crowd's readers reads: all of them, more than there are."""
LONG = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 200}
STREAMS = "tokenflow:tenant_streams"
FEW = 40
"""Tokens that the other tenant asks for meanwhile."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    path = tmp_path_factory.mktemp("tenants") / "classes.toml"
    path.write_text(FILE)
    return "--tokenflow-classes", str(path)


def ask(served: Served, ids: list[int], tenant: str, **params: Any) -> Answer:
    """The whole of a streamed answer to this tenant."""
    body = {"input_ids": ids, "stream": True, "sampling_params": {**LONG, **params}}
    return served.post("/generate", body, {HEADER: tenant})


def overtaken(served: Served, prompts: list[list[int]]) -> tuple[list[Answer], Answer, int]:
    """A crowd of one tenant, then one request of another one.

    Returns:
        The crowd's answers, the other's, and how many of the crowd had none when that one had.
    """
    answered: list[Answer | None] = [None] * CROWD

    def noisy(number: int) -> None:
        rate = {"custom_params": {"tokenflow_rate": RATE}}
        answered[number] = ask(served, prompts[number % len(prompts)], "noisy", **rate)

    crowd = [threading.Thread(target=noisy, args=(number,)) for number in range(CROWD)]
    for each in crowd:
        each.start()
    served.wait_for("preemptions_total", served.total("tokenflow:preemptions_total") + 1)
    mine = ask(served, long_prompt(prompts), "mine", max_new_tokens=FEW)
    late = sum(each is None for each in answered)
    for each in crowd:
        each.join()
    return [each for each in answered if each is not None], mine, late


def long_prompt(prompts: list[list[int]]) -> list[int]:
    """One that comes after all others where the shortest go first."""
    return [token for prompt in prompts for token in prompt][:400]


def ids_of(answer: Answer) -> list[int]:
    """Output token ids of a streamed answer."""
    assert answer.status == 200
    ids: list[int] = answer.body[-1]["output_ids"]
    return ids


@pytest.mark.parametrize("more", [(), ("--tp-size", "2", CHECK_RANKS)], ids=["one", "two-ranks"])
def test_a_crowd_changes_no_text_and_keeps_no_other_tenant_waiting(
    start: Callable[..., Any], prompts: list[list[int]], classes: tuple[str, str], more: Any
) -> None:
    with start(*POOL, *APART, *classes, *more) as served:
        alone = [ids_of(ask(served, prompt, "mine")) for prompt in prompts]
        crowd, mine, late = overtaken(served, prompts)
        assert len(crowd) == CROWD
        for number, answer in enumerate(crowd):
            assert ids_of(answer) == alone[number % len(prompts)]
        assert ids_of(mine) == ids_of(ask(served, long_prompt(prompts), "mine"))[:FEW]
        # It came last and was answered before nearly all of those that came first.
        assert late > NEARLY_ALL
        served.assert_clean()


def test_without_tenants_the_last_one_waits(
    start: Callable[..., Any], prompts: list[list[int]]
) -> None:
    """The control: the same requests, and no one is told apart."""
    with start(*POOL) as served:
        _, mine, late = overtaken(served, prompts)
        assert mine.status == 200
        assert late < NEARLY_ALL


BY_USER = ("--tokenflow-tenant-by", "user")


def woken(served: Served, prompts: list[list[int]]) -> tuple[list[list[int]], Answer, int]:
    """A crowd of one tenant rests, and all its readers come back as another tenant asks.

    Returns:
        What the crowd was answered, the other's answer, and how many of the crowd were not
        answered yet when that one was.
    """
    crowd = []
    for number in range(CROWD):
        ids = prompts[number % len(prompts)]
        reading = Reading(served, ids, LONG["max_new_tokens"], user="noisy")
        reading.wait_for(1)
        assert told(served, reading.rid, {"rate": 0}) == (204, "")
        crowd.append(reading)
    assert all(reading.reason is None for reading in crowd), "they rest"
    with ThreadPoolExecutor(CROWD) as pool:
        wakes = [pool.submit(told, served, reading.rid, {"rate": RATE}) for reading in crowd]
        assert {wake.result() for wake in wakes} == {(204, "")}
    body = {"input_ids": long_prompt(prompts), "sampling_params": {**LONG, "max_new_tokens": FEW}}
    mine = served.post("/generate", {**body, "stream": True, "user": "mine"})
    late = sum(reading.reason is None for reading in crowd)
    for reading in crowd:
        reading.join()
    return [reading.ids for reading in crowd], mine, late


def test_rests_that_end_at_once_keep_no_other_tenant_waiting(
    start: Callable[..., Any], prompts: list[list[int]], classes: tuple[str, str]
) -> None:
    with start(*POOL, *BY_USER, *classes) as served:
        alone = [ids_of(ask(served, prompt, "mine")) for prompt in prompts]
        crowd, mine, late = woken(served, prompts)
        assert crowd == [alone[number % len(prompts)] for number in range(CROWD)]
        assert ids_of(mine) == ids_of(ask(served, long_prompt(prompts), "mine"))[:FEW]
        assert late > NEARLY_ALL
        served.assert_clean()


def test_without_tenants_those_who_come_back_go_first(
    start: Callable[..., Any], prompts: list[list[int]]
) -> None:
    """The control."""
    with start(*POOL) as served:
        _, mine, late = woken(served, prompts)
        assert mine.status == 200
        assert late < NEARLY_ALL


Terms = tuple[dict[str, Any], dict[str, str]]
"""What says who asks: fields of the body, and headers."""
KINDS: dict[str, tuple[str, Callable[[str], Terms]]] = {
    "header": (f"header:{HEADER}", lambda tenant: ({}, {HEADER: tenant})),
    "api-key": ("api-key", lambda tenant: ({}, {"Authorization": f"Bearer {tenant}"})),
    "user": ("user", lambda tenant: ({"user": tenant}, {})),
}
"""Values of `--tokenflow-tenant-by`, and how a client is of a tenant by each."""
WORKERS = ("--tokenizer-worker-num", "2")
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")


def body_of(path: str, **more: Any) -> dict[str, Any]:
    """A request for a long answer."""
    if path == "/generate":
        return {"text": "hello", "sampling_params": LONG, **more}
    long = {"model": "x", "max_tokens": LONG["max_new_tokens"], "ignore_eos": True, **more}
    if path == "/v1/completions":
        return {**long, "prompt": "hello"}
    return {**long, "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, ()) for kind in KINDS),
        pytest.param(
            "header",
            WORKERS,
            marks=pytest.mark.skipif(
                not at_least("0.5.23"), reason="refused there: workers serve SGLang's own"
            ),
        ),
    ],
    ids=[*KINDS, "two-workers"],
)
def test_a_tenant_has_as_many_streams_as_it_may(
    start: Callable[..., Any], classes: tuple[str, str], kind: str, more: tuple[str, ...]
) -> None:
    by, terms = KINDS[kind]

    def post(tenant: str, path: str, **fields: Any) -> Answer:
        body, headers = terms(tenant)
        return served.post(path, {**body_of(path, **fields), **body}, headers)

    with start(*POOL, "--tokenflow-tenant-by", by, *classes, *more) as served:
        for tenant, refused in (("capped", True), ("other", False)):
            calls = [partial(post, tenant, PATHS[number % 3]) for number in range(6)]
            statuses = [answer.status for answer in served.together(calls)]
            assert statuses.count(200) >= 2
            assert statuses.count(200) + statuses.count(429) == len(calls)
            assert (429 in statuses) is refused
        # A stream hears of it before its HTTP 200.
        running = [threading.Thread(target=post, args=("capped", PATHS[0])) for _ in range(2)]
        for each in running:
            each.start()
        served.metrics_once(lambda _: served.labelled(STREAMS, tenant="capped") == 2)
        for path in PATHS:
            refused_stream = post("capped", path, stream=True)
            assert refused_stream.status == 429
            assert "as many as it may" in str(refused_stream.body)
        for each in running:
            each.join()
        # A client cannot say who it is where the scheduler is told.
        custom = {"custom_params": {"tokenflow_tenant": "name:mine"}}
        answer = post("other", "/generate", sampling_params={"max_new_tokens": 2, **custom})
        assert answer.status == 400
        assert "tokenflow_tenant is 'name:mine'; it must be left out" in str(answer.body)
        served.assert_clean()
