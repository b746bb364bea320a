"""Real SGLang on an emulated device with an emulated link to its storage, asked for prompts."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

CONTENDERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "wait_complete": ("wait_complete", ()),
    "timeout": ("timeout", ()),
    "best_effort": ("best_effort", ()),
    "restore": ("wait_complete", ("--tokenflow-restore", "auto")),
    "restore, layers": (
        "wait_complete",
        ("--tokenflow-restore", "auto", "--hicache-mem-layout", "layer_first"),
    ),
    "restore, tokenflow": (
        "wait_complete",
        ("--tokenflow-restore", "auto", "--scheduler", "tokenflow"),
    ),
}
"""SGLang's prefetch policy, and our options."""
PAGE_TOKENS = 64
HOST_RATIO = 3.0
"""The host's tokens of KV over the device's, unless it is said otherwise."""
STARTUP_S = 1200.0
"""Seconds that a server may take to start: beside other work it is many minutes."""
SECONDS = re.compile(
    r"^tokenflow:restoring_(?:busy_)?seconds_total\{([^}]*)\} ([0-9.e+-]+)$", re.MULTILINE
)
RESOURCE = re.compile(r'resource="([a-z]+)"')
ALL = "all"
"""What `busy_seconds` calls the time in which something was restored."""


class StoringServer:
    """One that runs.

    Args:
        url: Its address.
        control: File with the settings of its link.
    """

    def __init__(self, url: str, control: Path) -> None:
        self.url = url
        self._control = control

    def link(self, gbps: float) -> None:
        """From now on the storage is read at this rate."""
        self._control.write_text(json.dumps({"read_gbps": gbps}))

    def ask(
        self, prompts: Sequence[list[int]], priorities: Sequence[int] | None = None
    ) -> list[tuple[float, int]]:
        """All of them at the same time: TTFT in emulated seconds and tokens from the storage.

        Afterwards only the storage has their KV. The highest priority goes first; None: there are
        none.
        """
        number = len(prompts)
        wishes: Iterable[int | None] = priorities or repeat(None)
        with ThreadPoolExecutor(number) as pool:
            said = list(pool.map(self._ask, range(number), prompts, repeat(number), wishes))
        self.forget()
        return said

    def forget(self) -> None:
        """Wait until only the storage has the KV of what was asked."""
        while True:
            try:
                self._post("/flush_cache", {})
                return
            except urllib.error.HTTPError:  # copies are still under way
                time.sleep(0.1)

    def busy_seconds(self) -> dict[str, float]:
        """Seconds so far in which prefixes were restored, and of these those of device and link."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=600) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for labels, value in SECONDS.findall(text):
            resource = RESOURCE.search(labels)
            found[resource.group(1) if resource else ALL] = float(value)
        return found

    def _ask(
        self, index: int, prompt: list[int], of: int, priority: int | None
    ) -> tuple[float, int]:
        sampling = {
            "max_new_tokens": 2,
            "ignore_eos": True,
            "custom_params": {"emulated_arrival": {"at_s": 0.0, "index": index, "of": of}},
        }
        body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling}
        if priority is not None:
            body["priority"] = priority
        meta = json.loads(self._post("/generate", body))["meta_info"]
        return meta["emulated_s"][0], (meta["cached_tokens_details"] or {}).get("storage", 0)

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return bytes(answer.read())


@contextmanager
def storing(
    profile: DeviceProfile,
    contender: str,
    *,
    chunk: int,
    pool: int,
    longest: int,
    host: float = HOST_RATIO,
    options: Sequence[str] = (),
) -> Iterator[StoringServer]:
    """A server while it is needed.

    Args:
        profile: The device.
        contender: One of `CONTENDERS`.
        chunk: Tokens of a prefill step.
        pool: Tokens of KV on the device.
        longest: Tokens of a request at most.
        host: The host has so many times as many tokens of KV.
        options: More of SGLang's.
    """
    policy, ours = CONTENDERS[contender]
    with tempfile.TemporaryDirectory() as folder:
        file, control = Path(folder) / "profile.json", Path(folder) / "control.json"
        profile.save(file)
        settings = (
            *("--page-size", str(PAGE_TOKENS), "--chunked-prefill-size", str(chunk)),
            *("--max-total-tokens", str(pool), "--hicache-ratio", f"{host:g}"),
            *("--context-length", str(longest), "--random-seed", "1", "--sleep-on-idle"),
            "--enable-metrics",
            *storage_flags(policy=policy, write_gbps=400, control=str(control)),
            *ours,
            *options,
        )
        launcher = [sys.executable, "-m", "tokenflow_sgl_emulator.serve", "--profile", str(file)]
        launcher += ["--virtual-time", "--"]
        log = Path(folder) / "log"
        with SglangServer(
            None,
            settings,
            launcher=launcher,
            log_path=log,
            env={},
            startup_timeout_s=STARTUP_S,
        ) as server:
            yield StoringServer(server.url, control)
