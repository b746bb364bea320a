"""A prefill server with `--scheduler tokenflow`, and SGLang's decode server: the pair's tokens.

Both are real SGLang on the CPU, with its Mooncake backend over the emulator's link (`kv_link.py`).
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from servers.client import Served
from servers.fixtures import BROKEN

pytestmark = pytest.mark.engine

NEW = 24
POOL = ("--max-total-tokens", "4000", "--disaggregation-transfer-backend", "mooncake")
SAMPLING = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}


@contextmanager
def pair(start: Any, *flags: str, **prefill: Any) -> Iterator[tuple[Served, Served, int]]:
    """Prefill server, decode server, and the port at which they meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(port))
    with (
        start(*POOL, *own, "--scheduler", "tokenflow", *flags, **prefill) as first,
        start(*POOL, "--disaggregation-mode", "decode", *flags) as second,
    ):
        yield first, second, port


ROOMS = itertools.count(1000)


def ask(servers: tuple[Served, Served, int], prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt goes to both servers, as a router sends it; the decode server's tokens."""
    first, second, port = servers

    def one(prompt: list[int]) -> list[int]:
        meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port}
        body = {"input_ids": prompt, "sampling_params": SAMPLING, **meeting}
        body["bootstrap_room"] = next(ROOMS)
        sent, answer = first.together(
            [lambda: first.post("/generate", body), lambda: second.post("/generate", body)]
        )
        assert (sent.status, answer.status) == (200, 200), (sent, answer)
        tokens: list[int] = answer.body["output_ids"]
        return tokens

    said: list[list[int]] = first.together([lambda p=p: one(p) for p in prompts])
    return said


@pytest.fixture(scope="module")
def expected(start, prompts) -> list[list[int]]:
    """What one server says."""
    with start("--max-total-tokens", "4000") as served:
        body = {"input_ids": prompts, "sampling_params": SAMPLING}
        return [each["output_ids"] for each in served.post("/generate", body).body]


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--page-size", "16"), marks=pytest.mark.slow)], ids=["1", "16"]
)
def test_a_pair_says_what_one_server_says(start, prompts, expected, flags) -> None:
    with pair(start, *flags) as servers:
        assert ask(servers, prompts) == expected
        assert ask(servers, prompts) == expected, "and with prefixes that the first one has"
        first, second, _ = servers
        assert "tokenflow scheduler is off" in first.server.log_path.read_text()
        for served in (first, second):
            served.flush_when_idle()


@pytest.mark.slow
def test_kv_of_other_layers_is_noticed(start, prompts, expected) -> None:
    env = {"TOKENFLOW_TEST_BREAK": "other-layers-kv"}
    with pair(start, program=BROKEN, env=env) as servers:
        assert ask(servers, prompts) != expected
