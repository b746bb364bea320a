"""Tiny models made once per session, exact references, and real SGLang servers in subprocesses."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from servers.client import flush_when_idle
from servers.last_words import telling_why
from transformers import AutoModelForCausalLM

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl_emulator.models import ARCHS, make_tiny_lora, make_tiny_model

SECONDS = 240.0
"""Until an answer counts as not coming: whole answers are waited for, on machines that are busy."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {arch: make_tiny_model(root / arch, arch) for arch in ARCHS}


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]) -> Path:
    return make_tiny_lora(tmp_path_factory.mktemp("lora"), models["qwen3"])


@pytest.fixture(scope="session")
def greedy() -> Callable[[Any, list[int], int], list[int]]:
    """Transformers' greedy continuation: ``greedy(model, prompt ids, new tokens)``."""

    def generate(model: Any, prompt: list[int], new: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new,
            min_new_tokens=new,
        )
        continuation: list[int] = out[0, len(prompt) :].tolist()
        return continuation

    return generate


@pytest.fixture(scope="session")
def reference(models: dict[str, Path]) -> dict[str, Any]:
    """The models in transformers, in float64: what exact arithmetic gives."""
    return {
        arch: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()
        for arch, path in models.items()
    }


@dataclass
class Server:
    url: str

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=SECONDS)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        with self.open(path, body) as response:
            return json.load(response)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        with self.open(path, {**body, "stream": True}) as response:
            lines = [line.decode().strip() for line in response]
        events = [line.removeprefix("data: ") for line in lines if line]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def flush_when_idle(self) -> None:
        """Empty the caches, once nothing is served any more."""

        def flush() -> int:
            try:
                with self.open("/flush_cache", {}) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                return error.code

        flush_when_idle(flush)

    def generate(self, prompts: list[list[int]], new: int, **extra: Any) -> list[Any]:
        sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
        body = {"input_ids": prompts, "sampling_params": sampling, **extra}
        answer: list[Any] = self.post("/generate", body)
        return answer


StartServer = Callable[..., Any]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory, warm: tuple[str, ...]) -> StartServer:
    """``with start_server(model, *flags, env={}) as server``: starts, waits, and stops it."""

    @contextmanager
    def start(model: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Server]:
        with (
            SglangServer(
                model,
                # An idle SGLang spins on a core; servers of other modules may be up meanwhile.
                ["--sleep-on-idle", *flags],
                log_path=tmp_path_factory.mktemp("server") / "log",
                launcher=(*warm, "sglang.launch_server"),
                env={"SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1", **(env or {})},
            ) as server,
            telling_why(server.log_path),
        ):
            yield Server(server.url)

    return start


@pytest.fixture(scope="session")
def make_profile() -> Callable[..., DeviceProfile]:
    """A small device: ``make_profile(seconds=decode step, layers=4)``."""

    def make(seconds: float = 0.01, layers: int = 4) -> DeviceProfile:
        """Decode: `seconds` at batch 1 to twice that at 512; prefill: 1 ms per 100 tokens."""
        return DeviceProfile(
            device="toy",
            model="toy-model",
            source="made up for a test",
            layers=layers,
            kv_bytes_per_token=1000,
            device_memory=1 << 35,
            weight_bytes=1 << 30,
            kv_pool_tokens=4000,
            host_pool_tokens=8000,
            host_to_device=Link(bandwidth=1e6, latency=0.001),
            device_to_host=Link(bandwidth=5e5, latency=0.002),
            decode=DecodeTable((1.0, 512.0), (1.0, 1e4), ((seconds, seconds),) * 2),
            prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((1e-5, 1e-5), (0.01, 0.01))),
        )

    return make
