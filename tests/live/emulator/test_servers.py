"""Real SGLang servers on the emulator, each started once: HiCache, the HTTP API, TP and LoRA.

The reference is transformers in float64. HiCache is checked against the same server's own cold
answers too, and with a control in which the host copy is corrupted: a report of host hits alone
would look the same with wrong copies.
"""

import copy
import random
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.engine

NEW = 24
CORRUPTER = """
from pathlib import Path
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def after_load(result, pool, device_pool, host_indices, device_indices, layer_id, *rest, **named):
    if Path({flag!r}).exists():
        pool.device_v_buffers[layer_id][device_indices] += 1.0

def register():
    target = "tokenflow_sgl_emulator.host_pool.TorchCopies.load_to_device_per_layer"
    HookRegistry.register(target, after_load, HookType.AFTER)
"""


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 512) for _ in range(length)] for _ in range(count)]


def outputs(answers: list[Any]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


@dataclass
class HiCache:
    server: Any
    arch: str
    page_size: int
    corrupt_flag: Path

    def turn(self, prompt: list[int]) -> tuple[list[int], dict[str, int]]:
        """One request alone: its output ids, and where its cached tokens came from."""
        (answer,) = self.server.generate([prompt], NEW)
        return answer["output_ids"], answer["meta_info"]["cached_tokens_details"] or {}


@pytest.fixture(
    scope="module",
    params=[("llama", 1), pytest.param(("qwen3", 16), marks=pytest.mark.slow)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def hicache(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    models: dict[str, Path],
    start_server: Callable[..., Any],
) -> Iterator[HiCache]:
    arch, page_size = request.param
    folder = tmp_path_factory.mktemp("corrupter")
    flag = folder / "on"
    (folder / "corrupter.py").write_text(CORRUPTER.format(flag=str(flag)))
    info = folder / "corrupter-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: corrupter\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\ncorrupter = corrupter:register\n")
    flags = ["--enable-hierarchical-cache", "--hicache-ratio", "4", "--max-total-tokens", "1200"]
    flags += [
        "--page-size",
        str(page_size),
        "--enable-cache-report",
        "--chunked-prefill-size",
        "256",
    ]
    with start_server(models[arch], *flags, env={"PYTHONPATH": str(folder)}) as server:
        yield HiCache(server, arch, page_size, flag)


def test_greedy_equals_transformers(
    hicache: HiCache, reference: dict[str, Any], greedy: Callable[..., list[int]]
) -> None:
    asked = [*prompts(3, 20, seed=1), [7] * 33, *prompts(1, 300, seed=2)]  # 300: two chunks
    answers = outputs(hicache.server.generate(asked, NEW))
    assert answers == [greedy(reference[hicache.arch], prompt, NEW) for prompt in asked]


def test_output_does_not_depend_on_the_batch(hicache: HiCache) -> None:
    draw = random.Random(3)
    asked = [prompts(1, draw.randrange(5, 60), seed=i + 100)[0] for i in range(12)]

    def logprobs(answers: list[Any]) -> list[list[float]]:
        return [
            [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
            for answer in answers
        ]

    together = hicache.server.generate(asked, NEW, return_logprob=True)
    alone = [hicache.server.generate([p], NEW, return_logprob=True)[0] for p in asked]
    assert outputs(together) == outputs(alone)
    assert logprobs(together) == logprobs(alone)  # to the last bit


def test_host_hits_give_the_cold_output(
    hicache: HiCache, reference: dict[str, Any], greedy: Callable[..., list[int]]
) -> None:
    asked = prompts(5, 400, seed=4)  # 2000 tokens through a device pool of 1200
    cold = [hicache.turn(prompt) for prompt in asked]
    assert not any(details.get("host") for _, details in cold)
    warm = [hicache.turn(prompt) for prompt in asked]
    whole_pages = 399 // hicache.page_size * hicache.page_size
    assert [details["host"] for _, details in warm] == [whole_pages] * 5
    assert [ids for ids, _ in warm] == [ids for ids, _ in cold]
    assert cold[0][0] == greedy(reference[hicache.arch], asked[0], NEW)


def test_control_a_corrupted_host_copy_is_noticed(hicache: HiCache) -> None:
    asked = prompts(5, 400, seed=5)
    cold = [hicache.turn(prompt)[0] for prompt in asked]
    hicache.corrupt_flag.touch()
    try:
        warm = [hicache.turn(prompt) for prompt in asked]
    finally:
        hicache.corrupt_flag.unlink()
        # What was loaded wrong is in the device cache, and backed up from there.
        hicache.server.flush_when_idle()
    assert all(details["host"] >= 384 for _, details in warm)  # reported as hits all the same
    assert all(ids != want for (ids, _), want in zip(warm, cold, strict=True))


def test_http_api(hicache: HiCache) -> None:
    server = hicache.server
    with server.open("/health") as response:
        assert response.status == 200

    sampling = {"temperature": 0, "max_new_tokens": 8}
    once = server.post("/generate", {"text": "Grüße", "sampling_params": sampling})
    events = server.stream("/generate", {"text": "Grüße", "sampling_params": sampling})
    assert once["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
    assert events[-1]["text"] == once["text"]
    assert len(once["text"].split()) == 8
    # SGLang sends the text so far, one event a token or fewer: a busy machine coalesces them.
    assert 1 <= len(events) <= 8
    assert all(once["text"].startswith(event["text"]) for event in events)

    body = {"model": "tiny", "prompt": "Grüße", "temperature": 0, "max_tokens": 8}
    completion = server.post("/v1/completions", body)
    assert completion["choices"][0]["text"] == once["text"]

    messages = [{"role": "user", "content": "Hello"}]
    chat = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 8}
    answer = server.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    deltas = [e["choices"][0]["delta"] for e in server.stream("/v1/chat/completions", chat)]
    assert "".join(delta.get("content") or "" for delta in deltas) == answer
    assert len(answer.split()) == 8


def test_operators_routes_leave_the_server_running(hicache: HiCache, tmp_path: Path) -> None:
    """All that ask the device for something: on CUDA they would get it."""
    server = hicache.server
    (prompt,) = prompts(1, 20, seed=9)

    def answers() -> list[int]:
        (answer,) = server.generate([prompt], NEW)
        said: list[int] = answer["output_ids"]
        return said

    def ask(path: str, body: dict[str, Any] | None = None) -> int:
        """The status of an answer; the server goes on, whatever it is."""
        try:
            with server.open(path, {} if body is None else body) as response:
                status = int(response.status)
        except urllib.error.HTTPError as error:
            status = error.code
        assert answers() == expected, path
        return status

    expected = answers()
    for activities in ({}, {"activities": ["CPU"]}):
        assert ask("/start_profile", {"output_dir": str(tmp_path), **activities}) == 200
        assert ask("/stop_profile") == 200
    # Not by stage: SGLang then ends one profile and begins the next inside a span of the first,
    # and PyTorch writes the span's end into freed memory, on any device.
    assert ask("/start_profile", {"output_dir": str(tmp_path), "num_steps": 2}) == 200  # then ends
    assert len([*tmp_path.glob("*.trace.json.gz")]) == 3
    for activity in ("GPU", "MEM", "CUDA_PROFILER", "RPD", "tokenflow_emu"):
        assert ask("/start_profile", {"activities": [activity]}) == 500
    assert ask("/stop_profile") == 500  # none is under way
    server.flush_when_idle()
    with server.open("/release_memory_occupation", {}) as response:
        assert response.status == 200
    assert ask("/resume_memory_occupation") == 200
    for path in ("/freeze_gc", "/set_trace_level?level=1"):
        assert ask(path) == 200
    assert ask("/slow_down", {"forward_sleep_time": None}) == 200
    for path in ("/pause_generation", "/continue_generation"):
        server.open(path, {}).close()
    assert ask("/weights_checker", {"action": "checksum"}) == 200
    assert ask("/weights_checker", {"action": "snapshot"}) == 200
    assert ask("/weights_checker", {"action": "compare"}) in (200, 400)


def merge_lora(model: Any, adapter: Path, alpha: float = 8.0, rank: int = 4) -> None:
    tensors = {name: tensor.double() for name, tensor in load_file(adapter).items()}
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name in tensors:
            if name.endswith(".lora_A.weight"):
                stem = name.removesuffix(".lora_A.weight")
                update = tensors[f"{stem}.lora_B.weight"] @ tensors[name] * (alpha / rank)
                weights[f"{stem.removeprefix('base_model.model.')}.weight"] += update


@pytest.mark.slow
def test_two_ranks_and_lora_equal_transformers(
    models: dict[str, Path],
    lora: Path,
    reference: dict[str, Any],
    greedy: Callable[..., list[int]],
    start_server: Callable[..., Any],
) -> None:
    model = copy.deepcopy(reference["qwen3"])
    asked = prompts(4, 20, seed=6)
    with start_server(models["qwen3"], "--tp-size", "2", "--lora-paths", f"tiny={lora}") as server:
        plain = outputs(server.generate(asked, NEW))
        adapted = outputs(server.generate(asked, NEW, lora_path="tiny"))
    assert plain == [greedy(model, prompt, NEW) for prompt in asked]
    merge_lora(model, lora / "adapter_model.safetensors")
    assert adapted == [greedy(model, prompt, NEW) for prompt in asked]
    assert adapted != plain
