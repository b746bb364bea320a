"""A replay on an emulated device: answers end at the lengths of the trace, unknown to SGLang."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl_emulator.timed.model_folder import CONTEXT, write_model_folder
from tokenflow_sgl_emulator.tokenizer import EOS_ID

pytestmark = pytest.mark.engine

REQUESTS = 24
"""They want about 6,000 tokens of KV in the end; the device holds 1,500."""


def mixed() -> Trace:
    """Short and long answers, all asked for within a second."""
    rng = random.Random(3)
    requests = tuple(
        TraceRequest(number / REQUESTS, rng.randrange(20, 200), rng.choice((1, 2, 40, 300)), 20.0)
        for number in range(REQUESTS)
    )
    return Trace("mixed", requests, Accounting(REQUESTS, REQUESTS))


def replayed(url: str, trace: Trace, *, known_lengths: bool) -> tuple[Run, list[list[int]]]:
    """The run, and the token ids of each answer."""
    answers: dict[int, list[int]] = {}

    async def run() -> Run:
        target = await find_target(url)
        assert target.context == CONTEXT
        return await replay(
            trace,
            target,
            ReplayOptions(known_lengths=known_lengths),
            answered=lambda index, answer: answers.update({index: list(answer.ids)}),
        )

    done = asyncio.run(run())
    return done, [answers[index] for index in range(len(trace.requests))]


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["default", "tokenflow"])
def test_the_device_ends_answers_and_the_server_only_sees_limits(
    start_server: Any, make_profile: Any, tmp_path: Path, scheduler: str
) -> None:
    make_profile().save(tmp_path / "toy.json")
    write_model_folder(tmp_path / "model", 4)
    env = {
        "TOKENFLOW_EMU_PROFILE": str(tmp_path / "toy.json"),
        "TOKENFLOW_EMU_VIRTUAL_TIME": "1",
    }
    flags = ("--scheduler", scheduler, "--max-total-tokens", "1500", "--skip-tokenizer-init")
    trace = mixed()
    wanted = [request.output_tokens for request in trace.requests]
    with start_server(tmp_path / "model", *flags, env=env) as server:
        told, whole = replayed(server.url, trace, known_lengths=True)
        hidden, ended = replayed(server.url, trace, known_lengths=False)
    for run, reason in ((told, "length"), (hidden, "stop")):
        assert run.requests["error"].null_count == REQUESTS
        assert set(run.requests["finish_reason"].to_pylist()) == {reason}
        assert run.requests["output_tokens"].to_pylist() == wanted
    assert ended == [[*ids[:-1], EOS_ID] for ids in whole]
    assert not any(EOS_ID in ids for ids in whole)
    # What the server was told makes a difference to what it does.
    assert hidden.tokens != told.tokens
