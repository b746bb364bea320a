"""A client of one real server in a test: asks it, waits until it is idle, reads what it says."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tokenflow_sgl.lab.demo.server import SglangServer

TOKENS = 64
"""Output tokens of each request in the identity runs."""
IDLE_SECONDS = 60.0
"""How long a server may take to become idle after its last answer, on a slow machine."""
ANSWER_SECONDS = 240.0
"""Until an answer that does not stream counts as not coming: it comes when it is complete."""

JsonDict = dict[str, Any]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values of tokenflow:* by (name, labels without the server's own)."""


def flush_when_idle(flush: Callable[[], int], within: float = IDLE_SECONDS) -> None:
    """Flush the caches of a server that has answered everything; its loop may need a moment more.

    flush: posts /flush_cache and returns the HTTP status. A server that is not idle answers 400.
    """
    end = time.monotonic() + within
    while (status := flush()) != 200:
        assert time.monotonic() < end, f"/flush_cache: HTTP {status} for {within:g} s"
        time.sleep(0.2)


@dataclass
class Answer:
    """HTTP status and decoded body, or the streamed events."""

    status: int
    body: Any


@dataclass
class Served:
    """A running server and a small HTTP client for it."""

    server: SglangServer

    @property
    def ports(self) -> tuple[int, ...]:
        """Of the servers that are behind it."""
        return (self.server.port,)

    def post(
        self, path: str, body: JsonDict | None, headers: dict[str, str] | None = None
    ) -> Answer:
        request = urllib.request.Request(
            self.server.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json", **(headers or {})},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
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
        own = (
            *("rid", "return_logprob", "lora_path", "require_reasoning", "priority"),
            *("routed_dp_rank", "custom_logit_processor"),
        )
        extra = {key: sampling.pop(key) for key in own if key in sampling}
        params = {"temperature": 0, "max_new_tokens": TOKENS, **sampling}
        body = {"input_ids": ids, "sampling_params": params, "stream": stream, **extra}
        answer = self.post("/generate", body)
        if stream and answer.status == 200:
            answer.body = answer.body[-1]
        return answer

    def leave(self, ids: list[int], seconds: float, **more: Any) -> None:
        """Ask, and close the connection after so long, whatever has come by then."""
        body = {"input_ids": ids, "sampling_params": {"temperature": 0}, "stream": True, **more}
        request = urllib.request.Request(
            self.server.url + "/generate",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with contextlib.suppress(TimeoutError, urllib.error.URLError):
            urllib.request.urlopen(request, timeout=max(seconds, 0.01)).close()

    def together(self, calls: list[Callable[[], Answer]]) -> list[Answer]:
        """All calls at once, answers in order."""
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            return [f.result() for f in [pool.submit(call) for call in calls]]

    def outputs(self, prompts: list[list[int]], **how: Any) -> list[list[int]]:
        """Output token ids of all prompts, served at the same time."""
        answers = self.together([lambda p=p: self.generate(p, **how) for p in prompts])
        assert [a.status for a in answers] == [200] * len(prompts), answers
        return [a.body["output_ids"] for a in answers]

    def wait_until(self, name: str, value: float, within: float = IDLE_SECONDS) -> None:
        """Until the sum of a tokenflow metric is `value`; they are sampled once a second."""
        self._wait(name, lambda now: now == value, f"not {value}", within)

    def wait_for(self, name: str, least: float, within: float = IDLE_SECONDS) -> None:
        """Until the sum of a tokenflow metric is `least` or more."""
        self._wait(name, lambda now: now >= least, f"below {least}", within)

    def _wait(self, name: str, holds: Callable[[float], bool], wrong: str, within: float) -> None:
        end = time.monotonic() + within
        while not holds(now := self.total(f"tokenflow:{name}")):
            assert time.monotonic() < end, f"{name} is {now}, {wrong}, after {within:g} s"
            time.sleep(0.1)

    def metrics_once(
        self, holds: Callable[[Samples], bool], within: float = IDLE_SECONDS
    ) -> Samples:
        """The first samples of which that holds; much is handed on once a second, or later."""
        end = time.monotonic() + within
        while not holds(samples := self.metrics()):
            assert time.monotonic() < end, f"after {within:g} s: {samples}"
            time.sleep(0.1)
        return samples

    def metrics(self) -> Samples:
        """All samples of tokenflow:*."""
        ours = (
            *("cause", "mode", "source", "way", "direction", "qos_class"),
            *("percentile", "stalled", "le", "kept"),
        )
        return {
            (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k in ours))): s.value
            for s in self._samples()
            if s.name.startswith("tokenflow:")
        }

    def sglang_total(self, name: str) -> float:
        """Sum of one of SGLang's own metrics over its labels."""
        return sum(s.value for s in self._samples() if s.name == name)

    def _samples(self) -> list[Any]:
        with urllib.request.urlopen(self.server.url + "/metrics", timeout=30) as response:
            text = response.read().decode()
        return [s for family in text_string_to_metric_families(text) for s in family.samples]

    def total(self, name: str) -> float:
        """Sum of a metric over its labels."""
        return sum(value for (each, _), value in self.metrics().items() if each == name)

    def labelled(self, name: str, **labels: str) -> float:
        """Sum of a metric where it has these labels."""
        wanted = labels.items()
        return sum(
            s.value for s in self._samples() if s.name == name and wanted <= s.labels.items()
        )

    def log(self) -> str:
        return self.server.log_path.read_text(errors="replace")

    def flush_when_idle(self, within: float = IDLE_SECONDS) -> None:
        """Wait until nothing is served any more, and empty the caches."""
        flush_when_idle(lambda: self.post("/flush_cache", None).status, within)

    def assert_clean(self) -> None:
        """Nothing leaked: SGLang's checks are silent, and the idle caches can be flushed."""
        self.flush_when_idle()
        text = self.log()
        for trouble in ("leak", "Scheduler hit an exception", "Traceback"):
            where = text.find(trouble)
            assert where < 0, f"{trouble}: {text[max(where - 500, 0) : where + 4000]}"
