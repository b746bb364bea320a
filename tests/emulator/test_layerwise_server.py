"""Real SGLang on an emulated device in virtual time: a batch that does not fit, served whole."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.fixtures import SERVER_SIDE

from tokenflow_sgl.placement import Layouts, Machine, Staging, decode_step
from tokenflow_sgl.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl_emulator.timed.model_folder import write_model_folder
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, STAMP_KEY

pytestmark = pytest.mark.engine

LAYERS, PAGE, STREAMS, PROMPT, NEW = 9, 16, 5, 690, 30
PAGE_S = 0.001
"""Seconds in which the link moves a page of one layer."""
LAYER_S = 30 * PAGE_S
WHOLE = STREAMS * 45
"""Pages that the streams have in the end, in each layer: 225."""
DEVICE = 160
HANDED_OUT = WHOLE + 4 * STREAMS
"""Pages that SGLang hands out: it keeps some of them for what streams may need."""


def profile() -> DeviceProfile:
    return DeviceProfile(
        device="toy",
        model="toy-model",
        source="made up for a test",
        layers=LAYERS,
        kv_bytes_per_token=1000 * LAYERS,
        device_memory=1 << 35,
        weight_bytes=1 << 30,
        kv_pool_tokens=WHOLE * PAGE,
        host_pool_tokens=4 * WHOLE * PAGE,
        host_to_device=Link(bandwidth=PAGE * 1000 / PAGE_S, latency=0.0),
        device_to_host=Link(bandwidth=1e12, latency=0.0),
        decode=DecodeTable((1.0, 64.0), (1.0, 1e4), ((LAYERS * LAYER_S,) * 2,) * 2),
        prefill=PrefillTable((1.0, 1000.0), (1.0, 1e4), ((1e-5, 1e-5), (0.01, 0.01))),
    )


def test_tokens_come_as_fast_as_the_planner_said(start_server: Any, tmp_path: Path) -> None:
    profile().save(tmp_path / "toy.json")
    write_model_folder(tmp_path / "model", LAYERS)
    env = {
        "TOKENFLOW_EMU_PROFILE": str(tmp_path / "toy.json"),
        "TOKENFLOW_EMU_VIRTUAL_TIME": "1",
        "TOKENFLOW_TEST_LAYERS": str(tmp_path / "notes"),
        "PYTHONPATH": str(SERVER_SIDE),
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    flags = (
        *("--disable-radix-cache", "--skip-tokenizer-init", "--page-size", str(PAGE)),
        *("--tokenflow-layerwise", "layer_plans_made_up:NotedSolver"),
        *("--tokenflow-layerwise-ratio", str(HANDED_OUT / DEVICE)),
        *("--max-total-tokens", str(HANDED_OUT * PAGE)),
    )
    chance = random.Random(2)

    def ask(server: Any, index: int) -> list[float]:
        arrival = {ARRIVAL_KEY: {"at_s": 0.0, "index": index, "of": STREAMS}}
        sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
        ids = [chance.randrange(300, 4096) for _ in range(PROMPT)]
        body = {"input_ids": ids, "sampling_params": {**sampling, "custom_params": arrival}}
        times: list[float] = server.post("/generate", body)["meta_info"][STAMP_KEY]
        return times

    with start_server(tmp_path / "model", *flags, env=env) as server:
        with ThreadPoolExecutor(STREAMS) as pool:
            times = list(pool.map(lambda index: ask(server, index), range(STREAMS)))
        server.flush_when_idle()
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    decoding = [note for note in notes if len(note["running"]) == STREAMS and note["seconds"]]
    last, took = decoding[-1], np.diff(times, axis=1)[:, -2].mean()
    cells = last["cells"]
    planned = [tuple(layout) for layout in last["planned"]]
    layouts = Layouts(LAYERS, tuple(dict.fromkeys(planned)))
    said = decode_step(
        np.array(last["running"], dtype=float),
        np.array([layouts.index(each) for each in planned]),
        layouts,
        Machine(np.full(LAYERS, LAYER_S), 1.0 / PAGE_S, cells, Staging.stream),
    ).seconds
    print(
        f"{sum(last['running'])} pages of {LAYERS} layers on a device of {cells} cells: "
        f"{took:.4f} s a step, the planner {last['seconds']:.4f}, the model {said:.4f}, "
        f"resident {LAYERS * LAYER_S:.4f}"
    )
    assert sum(last["running"]) == WHOLE
    assert 1.3 * cells < WHOLE * LAYERS, "it would not fit"
    assert took == pytest.approx(last["seconds"], rel=0.05)
    assert took == pytest.approx(said, rel=0.05)
