"""Real SGLang on an emulated device in virtual time: a batch that does not fit, served whole."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.fixtures import SERVER_SIDE

from tokenflow_sgl.lab.profiles import DecodeTable, DeviceProfile, Link, PrefillTable
from tokenflow_sgl.placement import Layouts, Machine, Staging, decode_step
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


def answers(
    start_server: Any, folder: Path, planner: str, streams: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What so many prompts at once are answered, and what the planner noted of each step."""
    folder.mkdir(exist_ok=True)
    profile().save(folder / "toy.json")
    write_model_folder(folder / "model", LAYERS)
    env = {
        "TOKENFLOW_EMU_PROFILE": str(folder / "toy.json"),
        "TOKENFLOW_EMU_VIRTUAL_TIME": "1",
        "TOKENFLOW_TEST_LAYERS": str(folder / "notes"),
        "PYTHONPATH": str(SERVER_SIDE),
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    }
    flags = (
        *("--disable-radix-cache", "--skip-tokenizer-init", "--page-size", str(PAGE)),
        *("--tokenflow-layerwise", f"layer_plans_made_up:{planner}"),
        *("--tokenflow-layerwise-ratio", str(HANDED_OUT / DEVICE)),
        *("--max-total-tokens", str(HANDED_OUT * PAGE)),
    )

    def ask(server: Any, index: int) -> dict[str, Any]:
        arrival = {ARRIVAL_KEY: {"at_s": 0.0, "index": index, "of": streams}}
        sampling = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
        chance = random.Random(index)
        ids = [chance.randrange(300, 4096) for _ in range(PROMPT)]
        body = {"input_ids": ids, "sampling_params": {**sampling, "custom_params": arrival}}
        answer: dict[str, Any] = server.post("/generate", body)
        return answer

    with start_server(folder / "model", *flags, env=env) as server:
        with ThreadPoolExecutor(streams) as pool:
            said = list(pool.map(lambda index: ask(server, index), range(streams)))
        server.flush_when_idle()
    return said, [json.loads(line) for line in (folder / "notes").read_text().splitlines()]


def times_of(said: list[dict[str, Any]]) -> np.ndarray:
    """When each token of each answer came, of shape (streams, tokens)."""
    return np.array([each["meta_info"][STAMP_KEY] for each in said])


def test_tokens_come_as_fast_as_the_planner_said(start_server: Any, tmp_path: Path) -> None:
    said, notes = answers(start_server, tmp_path, "AllJoin", STREAMS)
    decoding = [note for note in notes if len(note["running"]) == STREAMS and note["seconds"]]
    last, took = decoding[-1], np.diff(times_of(said), axis=1)[:, -2].mean()
    cells = last["cells"]
    planned = [tuple(layout) for layout in last["planned"]]
    layouts = Layouts(LAYERS, tuple(dict.fromkeys(planned)))
    expected = decode_step(
        np.array(last["running"], dtype=float),
        np.array([layouts.index(each) for each in planned]),
        layouts,
        Machine(np.full(LAYERS, LAYER_S), 1.0 / PAGE_S, cells, Staging.stream),
    ).seconds
    print(
        f"{sum(last['running'])} pages of {LAYERS} layers on a device of {cells} cells: "
        f"{took:.4f} s a step, the planner {last['seconds']:.4f}, the model {expected:.4f}, "
        f"resident {LAYERS * LAYER_S:.4f}"
    )
    assert sum(last["running"]) == WHOLE
    assert 1.3 * cells < WHOLE * LAYERS, "it would not fit"
    assert took == pytest.approx(last["seconds"], rel=0.05)
    assert took == pytest.approx(expected, rel=0.05)


def test_prompts_wait_that_would_slow_all_streams_down(start_server: Any, tmp_path: Path) -> None:
    """Twice as many prompts as there are pages for: with fewer at a time all are done earlier."""
    done, crowded, tokens = {}, {}, {}
    for planner in ("NotedSolver", "AllJoin"):
        said, notes = answers(start_server, tmp_path / planner, planner, 2 * STREAMS)
        done[planner] = times_of(said).max()
        crowded[planner] = sum(len(note["running"]) == STREAMS for note in notes)
        tokens[planner] = [each["output_ids"] for each in said]
        first = times_of(said)[:, 0].mean()
        print(f"{planner}: {done[planner]:.2f} s, TTFT {first:.2f} s")
    assert tokens["NotedSolver"] == tokens["AllJoin"]
    # Until layers and link are measured, none waits.
    assert crowded["NotedSolver"] < 0.7 * crowded["AllJoin"]
    assert done["NotedSolver"] < done["AllJoin"]
