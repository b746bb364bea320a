"""Real SGLang in virtual time: a reader while a long prompt comes, and memory is free for both."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, PrefillTable
from tokenflow_sgl.qos import play
from tokenflow_sgl_emulator.timed.clock import VIRTUAL_VARIABLE
from tokenflow_sgl_emulator.timed.device import PROFILE_VARIABLE
from tokenflow_sgl_emulator.timed.model_folder import write_model_folder
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, STAMP_KEY

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Device:
    """An emulated device, and what is asked of it.

    decode_s, prefill_s: of a step, and per token of a prompt. rate: at which readers read, tokens
    per second. long, arrives_s: tokens of the long prompt, and when it comes; the reader has text
    for about half a second by then. share: TTFT of the long prompt, over what it is where the
    reader does not count, at most. stalls: of the reader, over those under stock SGLang, at most.
    """

    decode_s: float
    prefill_s: float
    rate: float
    long: int
    arrives_s: float
    share: float
    stalls: float

    def profile(self, plain: DeviceProfile) -> DeviceProfile:
        """The plain one with these times, and memory for all."""
        each, many = self.prefill_s, 1000 * self.prefill_s
        return replace(
            plain,
            kv_pool_tokens=20_000,
            decode=DecodeTable((1.0, 64.0), (1.0, 1e4), ((self.decode_s,) * 2,) * 2),
            prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((each,) * 2, (many,) * 2)),
        )


FAST = Device(0.01, 1.5e-4, rate=20.0, long=8000, arrives_s=0.1, share=1.1, stalls=0.05)
"""256 tokens beside a decode step take 48 ms, and a token is read in 50."""
SLOW = Device(0.07, 8e-4, rate=8.0, long=4000, arrives_s=1.0, share=2.0, stalls=0.05)
"""About Llama-3-70B on four RTX A6000: in the shortest mixed step, 275 ms, two tokens are read, so
decode steps go between. Two prefill steps can come in a row: one under way does not count yet."""
ANSWER = 120


@dataclass(frozen=True)
class Answer:
    """Its tokens, and when each came, seconds."""

    ids: list[int]
    times: list[float]


def stream(
    server: Any, ids: list[int], rate: float, arrival: dict[str, float], tokens: int
) -> Answer:
    custom = {ARRIVAL_KEY: arrival, "tokenflow_rate": rate}
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling | {"custom_params": custom}}
    last: dict[str, Any] = server.stream("/generate", body)[-1]
    return Answer(last["output_ids"], last["meta_info"][STAMP_KEY])


def together(server: Any, rate: float, *asked: tuple[list[int], float, int]) -> list[Answer]:
    """Stream these prompts, each from its moment on and for so many tokens."""

    def one(index: int) -> Answer:
        ids, at_s, tokens = asked[index]
        arrival = {"at_s": at_s, "index": index, "of": len(asked)}
        return stream(server, ids, rate, arrival, tokens)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, range(len(asked))))


def prompt(seed: int, tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 4096) for _ in range(tokens)]


def reader_and_newcomer(
    start_server: Any, device: Device, profile: DeviceProfile, root: Path, *flags: str
) -> list[Answer]:
    root.mkdir()
    profile.save(root / "toy.json")
    write_model_folder(root / "model", profile.layers)
    env = {PROFILE_VARIABLE: str(root / "toy.json"), VIRTUAL_VARIABLE: "1"}
    given = ("--skip-tokenizer-init", "--chunked-prefill-size", "8192", *flags)
    reader, newcomer = (prompt(10, 40), 0.0, ANSWER), (prompt(11, device.long), device.arrives_s, 8)
    with start_server(root / "model", *given, env=env) as server:
        for seed in range(3):  # it gets to know what prefills and decode steps cost
            together(server, device.rate, (prompt(seed, 200 * (seed + 1)), 0.0, 8))
        return together(server, device.rate, reader, newcomer)


@pytest.mark.parametrize("device", [FAST, SLOW], ids=["fast", "slow"])
def test_a_reader_does_not_stall_for_a_long_prompt(
    start_server: Any, make_profile: Any, device: Device, tmp_path: Path
) -> None:
    """Stock SGLang is the control: the reader waits for the whole prefill."""
    profile = device.profile(make_profile())
    tokenflow = ("--scheduler", "tokenflow", "--hicache-ratio", "4")
    stock, ours = (
        reader_and_newcomer(start_server, device, profile, tmp_path / name, *flags)
        for name, flags in (("stock", ()), ("tokenflow", tokenflow))
    )
    assert [each.ids for each in ours] == [each.ids for each in stock]
    frozen, stalled = (
        float(play(reader.times, device.rate).stalls.sum()) for reader, _ in (stock, ours)
    )
    soon, late = (newcomer.times[0] - device.arrives_s for _, newcomer in (stock, ours))
    print(f"stalls {frozen:.3f} and {stalled:.3f} s, TTFT {soon:.3f} and {late:.3f} s")
    assert frozen > 0.5 * device.prefill_s * device.long
    assert stalled < device.stalls * frozen
    assert late < device.share * soon
