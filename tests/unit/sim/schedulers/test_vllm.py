"""vLLM's scheduler: admission by the prompt alone, and the last request thrown out."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.lab.sim import simulate


def firsts(run):
    owner, times = run.tokens["request"].to_numpy(), run.tokens["time_s"].to_numpy()
    return times[np.searchsorted(owner, np.arange(len(run.requests)))]


def test_nothing_is_reserved_for_answers(trace, device, options) -> None:
    # Four times 100 + 300 tokens in 1,000: SGLang reserves for all of an answer, and starts two.
    burst = trace(*[(0.0, 100, 300)] * 4)
    stock = simulate(burst, device, options(), policy="fcfs", known_lengths=True)
    vllm = simulate(burst, device, options(), policy="vllm", known_lengths=True)
    assert (firsts(stock.run) < 1.0).sum() < 4
    assert (firsts(vllm.run) < 1.0).all()
    assert vllm.retracted > 0
    assert vllm.run.requests["output_tokens"].to_pylist() == [300] * 4
    # The first ones are never thrown out.
    ended = vllm.run.requests["ended_s"].to_numpy()
    assert ended[:2].max() < ended[2:].min()


def test_a_prompt_waits_for_its_blocks_and_the_watermark(trace, device, options) -> None:
    # 600 and 387 with a page of one token each, and a watermark of 10, fit into 1,000.
    run = simulate(trace((0.0, 600, 50), (0.0, 387, 50)), device, options(), policy="vllm").run
    assert len(set(firsts(run))) == 1
    run = simulate(trace((0.0, 600, 50), (0.0, 388, 50)), device, options(), policy="vllm").run
    assert firsts(run)[1] > run.requests["ended_s"].to_numpy()[0]
