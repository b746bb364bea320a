"""Real SGLang in virtual time: a reader while a long prompt comes, and memory is free for both."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tokenflow_sgl.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl.qos import play
from tokenflow_sgl_emulator.timed.clock import VIRTUAL_VARIABLE
from tokenflow_sgl_emulator.timed.device import PROFILE_VARIABLE
from tokenflow_sgl_emulator.timed.model_folder import write_model_folder
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, STAMP_KEY

pytestmark = pytest.mark.engine

RATE = 20.0
"""Tokens per second that readers read; a decode step takes 10 ms."""
LONG, ANSWER = 8000, 100
PREFILL_S = 1.2
"""Of the long prompt: 0.15 ms per token."""
ARRIVES_S = 0.1
"""By then the reader has text for about half a second."""


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    return DeviceProfile(
        device="toy",
        model="toy-model",
        source="made up for a test",
        layers=4,
        kv_bytes_per_token=1000,
        device_memory=1 << 35,
        weight_bytes=1 << 30,
        kv_pool_tokens=20_000,
        host_pool_tokens=80_000,
        host_to_device=Link(bandwidth=1e10, latency=1e-6),
        device_to_host=Link(bandwidth=1e10, latency=1e-6),
        decode=DecodeTable((1.0, 64.0), (1.0, 1e4), ((0.01,) * 2, (0.01,) * 2)),
        prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((1.5e-4,) * 2, (0.15,) * 2)),
    )


@dataclass(frozen=True)
class Answer:
    """Its tokens, and when each came, seconds."""

    ids: list[int]
    times: list[float]


def stream(server: Any, ids: list[int], arrival: dict[str, float], tokens: int) -> Answer:
    custom = {ARRIVAL_KEY: arrival, "tokenflow_rate": RATE}
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling | {"custom_params": custom}}
    last: dict[str, Any] = server.stream("/generate", body)[-1]
    return Answer(last["output_ids"], last["meta_info"][STAMP_KEY])


def together(server: Any, *asked: tuple[list[int], float, int]) -> list[Answer]:
    """Stream these prompts, each from its moment on and for so many tokens."""

    def one(index: int) -> Answer:
        ids, at_s, tokens = asked[index]
        return stream(server, ids, {"at_s": at_s, "index": index, "of": len(asked)}, tokens)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, range(len(asked))))


def prompt(seed: int, tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 4096) for _ in range(tokens)]


def reader_and_newcomer(
    start_server: Any, profile: DeviceProfile, root: Path, *flags: str
) -> list[Answer]:
    root.mkdir()
    profile.save(root / "toy.json")
    write_model_folder(root / "model", profile.layers)
    env = {PROFILE_VARIABLE: str(root / "toy.json"), VIRTUAL_VARIABLE: "1"}
    given = ("--skip-tokenizer-init", "--chunked-prefill-size", "8192", *flags)
    with start_server(root / "model", *given, env=env) as server:
        for seed in range(3):  # it gets to know what prefills and decode steps cost
            together(server, (prompt(seed, 200 * (seed + 1)), 0.0, 8))
        return together(server, (prompt(10, 40), 0.0, ANSWER), (prompt(11, LONG), ARRIVES_S, 8))


def test_a_reader_does_not_stall_for_a_long_prompt(
    start_server: Any, profile: DeviceProfile, tmp_path: Path
) -> None:
    """Stock SGLang is the control: the reader waits for the whole prefill."""
    tokenflow = ("--scheduler", "tokenflow", "--hicache-ratio", "4")
    stock, ours = (
        reader_and_newcomer(start_server, profile, tmp_path / name, *flags)
        for name, flags in (("stock", ()), ("tokenflow", tokenflow))
    )
    assert [each.ids for each in ours] == [each.ids for each in stock]
    frozen, stalled = (float(play(each[0].times, RATE).stalls.sum()) for each in (stock, ours))
    soon, late = (newcomer.times[0] - ARRIVES_S for _, newcomer in (stock, ours))
    print(f"stalls {frozen:.3f} and {stalled:.3f} s, TTFT {soon:.3f} and {late:.3f} s")
    assert frozen > 0.5 * PREFILL_S
    assert stalled < 0.05
    assert late < 1.5 * soon
