"""Real SGLang on an emulated device: it takes the profile's time, and keeps every text apart."""

import json
import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tokenflow_sgl.lab.demo.server import ServerError
from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl_emulator.answer_ends import END_KEY
from tokenflow_sgl_emulator.timed.model_folder import write_model_folder
from tokenflow_sgl_emulator.tokenizer import EOS_ID

pytestmark = pytest.mark.engine

KV_TOKENS = 1024
DECODE_S = 0.004


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    """4 to 8 ms per decode step; 20 ms per 1,000 prefilled tokens; a slow link."""
    return DeviceProfile(
        device="toy",
        model="toy-model",
        source="made up for a test",
        layers=4,
        kv_bytes_per_token=1000,
        device_memory=1 << 35,
        weight_bytes=1 << 30,
        kv_pool_tokens=KV_TOKENS,
        host_pool_tokens=4 * KV_TOKENS,
        host_to_device=Link(bandwidth=50e6, latency=1e-5),
        device_to_host=Link(bandwidth=50e6, latency=1e-5),
        decode=DecodeTable((1.0, 64.0), (1.0, 1e4), ((DECODE_S,) * 2, (2 * DECODE_S,) * 2)),
        prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((2e-5, 2e-5), (0.02, 0.02))),
    )


@pytest.fixture(scope="module")
def server(
    start_server: Any, profile: DeviceProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("emulated")
    profile.save(root / "toy.json")
    write_model_folder(root / "model", profile.layers)
    env = {
        "TOKENFLOW_EMU_PROFILE": str(root / "toy.json"),
        "TOKENFLOW_EMU_TIME_DILATION": "2",
    }
    flags = ("--scheduler", "tokenflow", "--hicache-ratio", "4", "--skip-tokenizer-init")
    with start_server(root / "model", *flags, env=env) as running:
        yield running


def state(server: Any) -> dict[str, Any]:
    with urllib.request.urlopen(server.url + "/server_info", timeout=60) as response:
        info: dict[str, Any] = json.load(response)["internal_states"][0]
    return info


def abort_all(server: Any) -> None:
    request = urllib.request.Request(
        server.url + "/abort_request",
        data=json.dumps({"abort_all": True}).encode(),
        headers={"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).close()


def prompt(seed: int, tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 4096) for _ in range(tokens)]


def ask(server: Any, ids: list[int], new: int, **custom: Any) -> list[int]:
    custom = {"tokenflow_rate": 5.0, **custom}
    sampling = {"temperature": 0, "max_new_tokens": new, "custom_params": custom}
    answer = server.post("/generate", {"input_ids": ids, "sampling_params": sampling})
    tokens: list[int] = answer["output_ids"]
    return tokens


def test_server_info_names_the_device(server: Any) -> None:
    report = state(server)["emulated_device"]
    assert (report["device"], report["model"]) == ("toy", "toy-model")
    assert report["time_dilation"] == 2.0
    assert 0 <= report["late_steps"] <= report["steps"]


def test_defaults_are_those_of_the_device(server: Any) -> None:
    info = state(server)
    assert info["max_total_tokens"] == KV_TOKENS
    assert info["chunked_prefill_size"] == 4096  # SGLang's choice for 32 GiB
    assert info["load_format"] == "dummy"


def test_one_request_takes_what_the_profile_says(server: Any, profile: DeviceProfile) -> None:
    before = state(server)["emulated_device"]
    assert len(ask(server, prompt(1, 100), 20)) == 20
    after = state(server)["emulated_device"]
    # Overlap scheduling launches one step more than there are tokens, before it knows the end.
    decodes = [profile.decode_seconds(1, 100 + i) for i in range(1, 21)]
    prefill = profile.prefill_seconds(100, 100 * 50.0)
    busy = after["busy_seconds"] - before["busy_seconds"]
    assert busy == pytest.approx(prefill + sum(decodes[:19])) or busy == pytest.approx(
        prefill + sum(decodes)
    )


def test_text_is_the_requests_own_however_it_was_scheduled(server: Any) -> None:
    # 16 requests of up to 160 tokens want 2,560 tokens of KV, the device has 1,024.
    prompts = [prompt(100 + i, 40 + 5 * i) for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda ids: ask(server, ids, 80), prompts))
    alone = [ask(server, ids, 80) for ids in prompts]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


@pytest.mark.slow
def test_answers_end_where_the_client_says(server: Any) -> None:
    # Each may have what the device holds; they take turns, and end by EOS at 1 to 91 tokens.
    prompts = [prompt(200 + i, 40 + 5 * i) for i in range(16)]
    wanted = [1 + 6 * i for i in range(16)]
    with ThreadPoolExecutor(16) as pool:
        together = list(
            pool.map(lambda ids, n: ask(server, ids, 4096, **{END_KEY: n}), prompts, wanted)
        )
    alone = [ask(server, ids, n) for ids, n in zip(prompts, wanted, strict=True)]
    assert together == [[*tokens[:-1], EOS_ID] for tokens in alone]
    assert all(EOS_ID not in tokens for tokens in alone), "the control: they do not end themselves"


def test_the_last_token_and_its_position_decide_the_next(server: Any) -> None:
    ids = prompt(7, 50)
    first = ask(server, ids, 10)
    assert ask(server, [*ids, *first[:5]], 5) == first[5:]
    assert ask(server, [*ids[:-1], 301], 10) != first


def test_only_an_answer_has_log_probabilities(server: Any) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 3}
    body = {"input_ids": prompt(8, 20), "sampling_params": sampling, "return_logprob": True}
    with pytest.raises(HTTPError) as refused:
        server.post("/generate", {**body, "logprob_start_len": 0})
    assert refused.value.code == 400
    assert "logprob_start_len is 0: an emulated device" in refused.value.read().decode()
    meta = server.post("/generate", {**body, "top_logprobs_num": 2})["meta_info"]
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 3
    assert meta["input_token_logprobs"] == []


def test_a_stream_that_decodes_beside_a_prefill_costs_what_it_reads(
    start_server: Any, profile: DeviceProfile, tmp_path: Path
) -> None:
    """SGLang runs a mixed batch as a prefill batch; its decoding rows must not come for free."""
    # A decode step takes 0.1 ms for each token that it reads, a prefill chunk 1 ms in all.
    reading = DecodeTable((1.0, 64.0), (1.0, 1e4), ((1e-4, 1.0), (1e-4 * 64, 64.0)))
    # The reader must not come to its end before a busy machine has looked twice.
    replace(profile, decode=reading, kv_pool_tokens=4 * KV_TOKENS).save(tmp_path / "toy.json")
    write_model_folder(tmp_path / "model", profile.layers)
    env = {
        "TOKENFLOW_EMU_PROFILE": str(tmp_path / "toy.json"),
        "TOKENFLOW_EMU_TIME_DILATION": "1",
    }
    flags = ("--enable-mixed-chunk", "--chunked-prefill-size", "51", "--skip-tokenizer-init")
    with start_server(tmp_path / "model", *flags, env=env) as server, ThreadPoolExecutor(1) as pool:
        reader = pool.submit(ask, server, prompt(1, 400), 3 * KV_TOKENS)
        while state(server)["emulated_device"]["busy_seconds"] < 0.1:  # it decodes
            assert not reader.done()
        before = state(server)["emulated_device"]
        ask(server, prompt(2, 500), 1)
        after = state(server)["emulated_device"]
        abort_all(server)
        assert 12 < len(reader.result()) < 3 * KV_TOKENS, "the prefill must have been beside it"
    steps = after["steps"] - before["steps"]
    assert steps >= 10
    # Every one of them read its 400 tokens: 40 ms. Two are launched that have not ended.
    assert after["busy_seconds"] - before["busy_seconds"] > (steps - 2) * 0.040


def test_refused_arguments_are_named(
    start_server: Any, profile: DeviceProfile, tmp_path: Path
) -> None:
    profile.save(tmp_path / "toy.json")
    write_model_folder(tmp_path / "model", profile.layers)
    env = {
        "TOKENFLOW_EMU_PROFILE": str(tmp_path / "toy.json"),
    }
    with (
        pytest.raises(ServerError, match=r"--tp-size is 2: the emulated device is one device"),
        start_server(tmp_path / "model", "--tp-size", "2", env=env),
    ):
        pass
