"""A disaggregated pair: a prefill server and a decode server that meet at a port of the former."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from servers.client import Answer, Served

from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.lab.demo.server import free_port

MOONCAKE = ("--disaggregation-transfer-backend", "mooncake")
"""Over the emulator's link (`kv_link.py`)."""
MEETINGS = (11_000, 15_000)
"""Ports at which pairs meet. Servers' own come from above: one of thousands of pairs would
be given the same number twice, since neither listens yet."""
ROOMS = itertools.count(1000)
SAMPLING = {"temperature": 0, "max_new_tokens": 64}


@dataclass(frozen=True)
class Pair:
    """Both servers.

    Attributes:
        prefill, decode: These.
        port: At which they meet.
    """

    prefill: Served
    decode: Served
    port: int

    def generate(self, ids: list[int], *, stream: bool = False, **more: Any) -> Answer:
        """A request goes to both, as a router sends it; the decode server's answer.

        more: Of its sampling parameters, but for `rid` and `return_logprob`.
        """
        own = {key: more.pop(key) for key in ("rid", "return_logprob") if key in more}
        body = {
            "input_ids": ids,
            "sampling_params": {**SAMPLING, **more},
            "stream": stream,
            **own,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.port,
            "bootstrap_room": next(ROOMS),
        }
        _, answer = self.prefill.together(
            [
                lambda: self.prefill.post("/generate", {**body, "stream": False}),
                lambda: self.decode.post("/generate", body),
            ]
        )
        if stream and answer.status == 200:
            answer.body = answer.body[-1]
        return answer

    def outputs(self, prompts: list[list[int]], **how: Any) -> list[list[int]]:
        """Output token ids of all prompts, served at the same time."""
        answers = self.prefill.together([lambda p=p: self.generate(p, **how) for p in prompts])
        assert [answer.status for answer in answers] == [200] * len(prompts), answers
        return [answer.body["output_ids"] for answer in answers]


@contextmanager
def pair(
    start: Any,
    *flags: str,
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    first: dict[str, Any] | None = None,
    **given: Any,
) -> Iterator[Pair]:
    """Start both.

    Args:
        start: The fixture.
        flags: Of both.
        prefill, decode: Further flags of one of them.
        first: What else the start of the prefill server is given.
        given: Likewise the decode server's; the model is both's.
    """
    if not at_least("0.5.23"):
        pytest.skip("decode servers of this SGLang are refused")
    port = free_port(MEETINGS)
    own = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(port))
    model = {"model": given["model"]} if "model" in given else {}
    with (
        start(*MOONCAKE, *own, *flags, *prefill, **{**model, **(first or {})}) as one,
        start(*MOONCAKE, "--disaggregation-mode", "decode", *flags, *decode, **given) as other,
    ):
        yield Pair(one, other, port)
