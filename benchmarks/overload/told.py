"""How soon a refused client hears of it: a busy server in real SGLang, on the CPU.

    python benchmarks/overload/told.py

Starts a server with a tiny model, keeps it busy with readers who wait as long as it takes, and
asks for what it will refuse, streamed and not, one after the other and fifty at a time. Prints
milliseconds from the request to the answer, beside those of a request that SGLang refuses before it
looks at it (an unknown field), which is what HTTP takes here. A minute.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl_emulator.models import make_tiny_model

FLAGS = (
    *("--scheduler", "tokenflow", "--tokenflow-max-wait", "0.5", "--enable-metrics"),
    *("--max-total-tokens", "1500", "--hicache-ratio", "2", "--random-seed", "1"),
)
READERS, TOKENS, RATE = 40, 1500, 200
TIMES, AT_ONCE = 100, 50


def main() -> None:
    """Measure, and print a row for each way to ask."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder, "model"), arch="qwen3", layers=2)
        env = {"SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1"}
        with SglangServer(model, [*FLAGS], log_path=Path(folder, "log"), env=env) as server:
            measure(server.url)


def measure(url: str) -> None:
    """Keep the server busy, and ask."""
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": TOKENS}
    patient = {**sampling, "custom_params": {"tokenflow_rate": RATE, "tokenflow_max_wait": 0}}
    busy = {"input_ids": list(range(5, 105)), "sampling_params": patient}
    for _ in range(READERS):
        threading.Thread(target=read, args=(url, busy), daemon=True).start()
    while wait(url) < 2.0:
        time.sleep(0.1)
    hasty = {"text": "hello", "sampling_params": {"max_new_tokens": 2}}
    bad = {"text": "hello", "sampling_params": {"custom_params": {"tokenflow_rate": -1}}}
    for name, body, status in (
        ("a bad rate, HTTP 400", bad, 400),
        ("refused, HTTP 429", hasty, 429),
        ("refused stream, HTTP 429", {**hasty, "stream": True}, 429),
    ):
        one_by_one = [ask(url, body) for _ in range(TIMES)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            together = list(pool.map(partial(ask, url), [body] * AT_ONCE))
        for how, answers in (("one by one", one_by_one), (f"{AT_ONCE} at once", together)):
            right = [seconds for code, seconds in answers if code == status]
            p50, p99 = np.percentile(right, [50, 99]) * 1e3
            print(f"{name}, {how}: {len(right)} of {len(answers)}, P50 {p50:.1f}, P99 {p99:.1f} ms")


def read(url: str, body: dict[str, Any]) -> None:
    """Ask for an answer that the end of the server may cut off."""
    with contextlib.suppress(OSError):
        ask(url, body)


def wait(url: str) -> float:
    """Seconds that the server expects newcomers to wait."""
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=60) as answer:
        [load] = json.load(answer)["loads"]
    return float(load["tokenflow_expected_wait_s"] or 0.0)


def ask(url: str, body: dict[str, Any]) -> tuple[int, float]:
    """The status of an answer, and seconds until it was there."""
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()
            code = answer.status
    except urllib.error.HTTPError as error:
        error.read()
        code = error.code
    return code, time.perf_counter() - began


if __name__ == "__main__":
    main()
