"""Real SGLang servers on the CPU platform, with and without the scheduler, and what they say."""

from __future__ import annotations

import concurrent.futures
import json
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokenflow_sgl.demo.server import SglangServer
from tokenflow_sgl_emulator.models import make_tiny_lora, make_tiny_model

HERE = Path(__file__).parent
TOKENS = 64
"""Output tokens of each request in the identity runs."""
MODULE = "sglang.launch_server"
COLD = (sys.executable, "-m", MODULE)
"""A launcher as users start SGLang: it imports everything anew."""

JsonDict = dict[str, Any]


@dataclass
class Answer:
    """HTTP status and decoded body, or the streamed events."""

    status: int
    body: Any


@dataclass
class Served:
    """A running server and a small HTTP client for it."""

    server: SglangServer

    def post(self, path: str, body: JsonDict | None) -> Answer:
        request = urllib.request.Request(
            self.server.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                raw = response.read()
                status = response.status
        except urllib.error.HTTPError as error:
            raw, status = error.read(), error.code
        text = raw.decode()
        if text.startswith("data: "):
            events = [e.removeprefix("data: ") for e in text.split("\n\n") if e.strip()]
            return Answer(status, [json.loads(e) for e in events if e != "[DONE]"])
        try:
            return Answer(status, json.loads(text))
        except json.JSONDecodeError:
            return Answer(status, text)

    def generate(self, ids: list[int], *, stream: bool = False, **sampling: Any) -> Answer:
        extra = {
            k: sampling.pop(k) for k in ("rid", "return_logprob", "lora_path") if k in sampling
        }
        params = {"temperature": 0, "max_new_tokens": TOKENS, **sampling}
        body = {"input_ids": ids, "sampling_params": params, "stream": stream, **extra}
        answer = self.post("/generate", body)
        if stream and answer.status == 200:
            answer.body = answer.body[-1]
        return answer

    def together(self, calls: list[Callable[[], Answer]]) -> list[Answer]:
        """All calls at once, answers in order."""
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return [f.result() for f in [pool.submit(call) for call in calls]]

    def outputs(self, prompts: list[list[int]], **how: Any) -> list[list[int]]:
        """Output token ids of all prompts, served at the same time."""
        answers = self.together([lambda p=p: self.generate(p, **how) for p in prompts])
        assert [a.status for a in answers] == [200] * len(prompts), answers
        return [a.body["output_ids"] for a in answers]

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All samples of tokenflow:* by (name, labels without the server's own)."""
        with urllib.request.urlopen(self.server.url + "/metrics", timeout=30) as response:
            text = response.read().decode()
        ours = ("cause", "mode", "source", "direction", "qos_class", "percentile", "stalled", "le")
        return {
            (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k in ours))): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.name.startswith("tokenflow:")
        }

    def total(self, name: str) -> float:
        """Sum of a metric over its labels."""
        return sum(value for (each, _), value in self.metrics().items() if each == name)

    def log(self) -> str:
        return self.server.log_path.read_text(errors="replace")

    def assert_clean(self) -> None:
        """Nothing leaked: SGLang's checks are silent, and the idle caches can be flushed."""
        # The loop may still have an iteration to go when the last answer is out.
        end = time.monotonic() + 10.0
        while (flushed := self.post("/flush_cache", None)).status != 200:
            assert time.monotonic() < end, flushed
            time.sleep(0.2)
        text = self.log()
        for trouble in ("leak", "Scheduler hit an exception", "Traceback"):
            assert trouble not in text, text[-6000:]


Start = Callable[..., Any]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models."""
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model(folder / "qwen3", arch="qwen3")
    make_tiny_lora(folder / "lora", folder / "qwen3")
    return folder


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory, models: Path, warm: tuple[str, ...]) -> Start:
    """`with start(*flags) as served`: a real server, strict memory checks on.

    A warm one, of a module or a script that stands for it, unless a launcher is named.
    """

    @contextmanager
    def run(
        *flags: str,
        program: str = MODULE,
        launcher: tuple[str, ...] | None = None,
        env: dict[str, str] | None = None,
    ) -> Iterator[Served]:
        with SglangServer(
            models / "qwen3",
            # An idle SGLang spins on a core; servers of other modules may be up meanwhile.
            ["--enable-metrics", "--random-seed", "1", "--sleep-on-idle", *flags],
            log_path=tmp_path_factory.mktemp("server") / "log",
            launcher=launcher or (*warm, program),
            env={
                "SGLANG_PLATFORM": "tokenflow_emu",
                "HF_HUB_OFFLINE": "1",
                "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
                "PYTHONPATH": str(HERE),
                **(env or {}),
            },
        ) as server:
            yield Served(server)

    return run


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twelve prompts, some longer than the prefill chunk of the tests."""
    rng = random.Random(5)
    return [[rng.randrange(10, 200) for _ in range(rng.randrange(8, 90))] for _ in range(12)]


@pytest.fixture(scope="session")
def families() -> list[list[int]]:
    """Prompts of which each four begin alike: what one loads, another may be about to read."""
    rng = random.Random(6)
    beginnings = [[rng.randrange(10, 200) for _ in range(48)] for _ in range(4)]
    return [
        [*beginning, *(rng.randrange(10, 200) for _ in range(rng.randrange(4, 40)))]
        for beginning in beginnings
        for _ in range(4)
    ]


@pytest.fixture(scope="session")
def undisturbed(
    start: Start, prompts: list[list[int]], families: list[list[int]]
) -> tuple[list[list[int]], ...]:
    """What stock SGLang answers, one request at a time, with nothing of ours switched on."""
    with start("--max-total-tokens", "4000", launcher=COLD) as served:
        return tuple(
            [served.outputs([prompt])[0] for prompt in asked] for asked in (prompts, families)
        )


@pytest.fixture(scope="session")
def reference(undisturbed: tuple[list[list[int]], ...]) -> list[list[int]]:
    """Stock SGLang's answers to `prompts`."""
    return undisturbed[0]


@pytest.fixture(scope="session")
def expected(undisturbed: tuple[list[list[int]], ...]) -> list[list[int]]:
    """Stock SGLang's answers to `families`."""
    return undisturbed[1]
