"""Real SGLang on an emulated device, an emulated storage behind it, in virtual time."""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags
from tokenflow_sgl_emulator.timed.clock import IDLE_PASS_S, LONGEST_PASS, VIRTUAL_VARIABLE
from tokenflow_sgl_emulator.timed.device import PROFILE_VARIABLE
from tokenflow_sgl_emulator.timed.model_folder import write_model_folder
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, STAMP_KEY

pytestmark = pytest.mark.engine

PAGE, PREFIX, SUFFIX = 16, 1600, 40
TOKEN_BYTES = 1000
RATE, LATENCY_S = 1e6, 1e-3  # bytes per second
FETCH_S = PREFIX * TOKEN_BYTES / RATE
PASSES_S = 4 * IDLE_PASS_S
"""SGLang sees what has landed in its next pass, and needs some of them until the step starts."""


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    """20 ms per 1,000 prefilled tokens; KV of a token is 1 ms of the storage's link."""
    return DeviceProfile(
        device="toy",
        model="toy-model",
        source="made up for a test",
        layers=4,
        kv_bytes_per_token=TOKEN_BYTES,
        device_memory=1 << 35,
        weight_bytes=1 << 30,
        kv_pool_tokens=4096,
        host_pool_tokens=16384,
        host_to_device=Link(bandwidth=1e10, latency=1e-6),
        device_to_host=Link(bandwidth=1e10, latency=1e-6),
        decode=DecodeTable((1.0, 64.0), (1.0, 1e4), ((0.004,) * 2, (0.008,) * 2)),
        prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((2e-5, 2e-5), (0.02, 0.02))),
    )


@pytest.fixture(scope="module")
def serve(
    start_server: Any, profile: DeviceProfile, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """`with serve(*flags, policy="wait_complete") as (server, control)`."""

    @contextmanager
    def run(*flags: str, policy: str = "wait_complete") -> Iterator[tuple[Any, Path]]:
        root = tmp_path_factory.mktemp("emulated")
        profile.save(root / "toy.json")
        write_model_folder(root / "model", profile.layers)
        storage = storage_flags(
            policy,
            read_gbps=RATE * 8 / 1e9,
            write_gbps=1.0,
            latency_us=LATENCY_S * 1e6,
            control=str(root / "control"),
        )
        flags += ("--page-size", str(PAGE), "--hicache-ratio", "4", "--skip-tokenizer-init")
        flags += ("--hicache-write-policy", "write_through")
        env = {PROFILE_VARIABLE: str(root / "toy.json"), VIRTUAL_VARIABLE: "1"}
        with start_server(root / "model", *storage, *flags, env=env) as server:
            yield server, root / "control"

    return run


@pytest.fixture(scope="module")
def server(serve: Callable[..., Any]) -> Iterator[Any]:
    with serve() as (running, _):
        yield running


def prompt(seed: int, ending: int = 0) -> list[int]:
    """The prefix by `seed`; what comes after it is another one with each `ending`."""
    rng, end = random.Random(seed), random.Random(1000 + ending)
    prefix = [rng.randrange(300, 4096) for _ in range(PREFIX)]
    return prefix + [end.randrange(300, 4096) for _ in range(SUFFIX)]


def ask(server: Any, *prompts: list[int], at_s: float = 0.0) -> list[tuple[float, int]]:
    """Ask together, each `at_s` after the one before: TTFT and tokens from the storage of each."""

    def send(number: int) -> tuple[float, int]:
        arrival = {"at_s": at_s * number, "index": number, "of": len(prompts)}
        sampling = {"temperature": 0, "max_new_tokens": 2, "custom_params": {ARRIVAL_KEY: arrival}}
        body = {"input_ids": prompts[number], "sampling_params": sampling}
        meta = server.post("/generate", body)["meta_info"]
        hit = (meta["cached_tokens_details"] or {}).get("storage", 0)
        return meta[STAMP_KEY][0] - arrival["at_s"], hit

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(send, range(len(prompts))))


def suffix_seconds(profile: DeviceProfile) -> float:
    return profile.prefill_seconds(SUFFIX, attention_work(SUFFIX, PREFIX))


def whole_seconds(profile: DeviceProfile, tokens: int = PREFIX + SUFFIX) -> float:
    return profile.prefill_seconds(tokens, attention_work(tokens))


def stored(server: Any, *prompts: list[int]) -> None:
    """The prefixes of these prompts are in the storage and nowhere else."""
    for ids in prompts:
        ((_, hit),) = ask(server, ids[:PREFIX])
        assert hit == 0
    server.flush_when_idle()


def test_a_hit_takes_what_the_link_takes(server: Any, profile: DeviceProfile) -> None:
    stored(server, prompt(1))
    times = []
    for ending in range(2):
        ((ttft, hit),) = ask(server, prompt(1, ending))
        server.flush_when_idle()
        assert hit == PREFIX
        times.append(ttft)
    # A query and one batch of pages, each with the link's latency; then the device.
    expected = 2 * LATENCY_S + FETCH_S + suffix_seconds(profile)
    load = profile.load_seconds(PREFIX)
    assert expected - 1e-9 <= times[0] <= expected + load + PASSES_S
    assert times[0] == pytest.approx(times[1], rel=1e-9), "the same whenever it is asked"


def test_two_hits_share_the_link(server: Any, profile: DeviceProfile) -> None:
    both = prompt(2), prompt(3)
    stored(server, *both)
    (first, _), (second, hit) = ask(server, *both)
    server.flush_when_idle()
    assert hit == PREFIX
    assert second - first == pytest.approx(FETCH_S + LATENCY_S, abs=PASSES_S + 0.01)
    assert first < FETCH_S + 0.05 < 2 * FETCH_S <= second


def test_others_go_on_while_pages_are_on_their_way(server: Any, profile: DeviceProfile) -> None:
    """The clock stops at the transfer's end also where a step ends later, and no step waits."""
    stored(server, prompt(4))
    other = prompt(5)[:200]
    (ttft, hit), (others, _) = ask(server, prompt(4), other, at_s=FETCH_S / 2)
    server.flush_when_idle()
    assert hit == PREFIX
    assert others == pytest.approx(whole_seconds(profile, 200), abs=PASSES_S)
    expected = 2 * LATENCY_S + FETCH_S + suffix_seconds(profile)
    assert ttft == pytest.approx(expected, abs=0.01)


@pytest.fixture(scope="module")
def impatient(serve: Callable[..., Any]) -> Iterator[tuple[Any, Path]]:
    """Without overlap, and with SGLang's time limit for what it waits for."""
    with serve("--disable-overlap-schedule", policy="timeout") as running:
        yield running


def test_without_overlap_a_step_takes_its_time(
    impatient: tuple[Any, Path], profile: DeviceProfile
) -> None:
    server, _ = impatient
    ((ttft, _),) = ask(server, prompt(6))
    server.flush_when_idle()
    # Before it is computed it is looked for in the storage, in vain.
    expected = LATENCY_S + whole_seconds(profile)
    assert ttft == pytest.approx(expected, abs=PASSES_S)


def test_sglangs_time_limit_counts_the_devices_seconds(
    impatient: tuple[Any, Path], profile: DeviceProfile
) -> None:
    server, control = impatient
    stored(server, prompt(7))
    control.write_text(json.dumps({"slow_factor": 100}))  # 160 s
    ((ttft, hit),) = ask(server, prompt(7))
    server.flush_when_idle()
    assert hit == 0
    asked = (PREFIX + SUFFIX) // PAGE * PAGE
    limit = 1.0 + 0.25 * asked / 1024
    late = LATENCY_S + IDLE_PASS_S * 2**LONGEST_PASS + PASSES_S
    assert limit <= ttft - whole_seconds(profile) <= limit + late


def test_a_batch_is_a_trace_too(server: Any) -> None:
    """SGLang sends the prompts of one HTTP request together; they do not arrive so."""
    arrivals = [{"at_s": 5.0 * number, "index": number, "of": 3} for number in range(3)]
    sampling = [{"max_new_tokens": 2, "custom_params": {ARRIVAL_KEY: each}} for each in arrivals]
    body = {"input_ids": [prompt(50 + n) for n in range(3)], "sampling_params": sampling}
    first = [each["meta_info"][STAMP_KEY][0] for each in server.post("/generate", body)]
    assert [stamp // 5.0 for stamp in first] == [0.0, 1.0, 2.0]
    server.flush_when_idle()


def test_an_arrival_that_cannot_be_meant_is_answered_with_its_reason(server: Any) -> None:
    for field, value in (("at_s", "soon"), ("at_s", -1.0), ("index", 1), ("of", 0)):
        arrival = {"at_s": 0.0, "index": 0, "of": 1, field: value}
        sampling = {"max_new_tokens": 2, "custom_params": {ARRIVAL_KEY: arrival}}
        with pytest.raises(HTTPError) as refused:
            server.post("/generate", {"input_ids": prompt(60), "sampling_params": sampling})
        assert refused.value.code == 400
        assert f"{ARRIVAL_KEY}.{field} is {value!r}" in refused.value.read().decode()
    assert ask(server, prompt(60))[0][0] > 0.0


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "control"])
def test_the_clock_stands_until_a_turn_has_come(server: Any, announced: bool) -> None:
    """Another request arrives at 50 s: where no turn is awaited, the clock goes there."""
    of = 3 if announced else 2

    def send(ids: list[int], **arrival: float) -> list[float]:
        sampling = {"temperature": 0, "max_new_tokens": 2, "custom_params": {ARRIVAL_KEY: arrival}}
        meta = server.post("/generate", {"input_ids": ids, "sampling_params": sampling})[
            "meta_info"
        ]
        return list(meta[STAMP_KEY])

    ids = prompt(90 + announced)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(send, ids[:64], at_s=50.0, index=1, of=of)
        first = send(
            ids[:100], at_s=0.0, index=0, of=of, **({"later_turns": 1} if announced else {})
        )
        if not announced:
            assert other.result()[0] >= 50.0
        second = send(ids[:200], at_s=first[-1] + 2.0, index=2, of=3, after=0)
        assert other.result()[0] >= 50.0
    waited = second[0] - first[-1] - 2.0
    assert 0.0 < waited < 1.0 if announced else waited > 40.0
