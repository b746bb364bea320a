"""Files that documented commands read, made small: the public shapes, with made-up figures."""

from __future__ import annotations

import datetime
import json
import random
import shutil
from pathlib import Path

from made_runs import synthetic

from documented.collected import ROOT
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.report.load_sweep import (
    Estimate,
    LoadKind,
    LoadPoint,
    LoadSweep,
    goodput_of,
    share_of,
    write_sweep,
)
from tokenflow_sgl.lab.report.sweep_view import SHOWN
from tokenflow_sgl.lab.runs import write_run

RUNS = ("runs/stock", "runs/tokenflow", "without", "with", "replay-results/stock-1")
NOON = "2026-11-22T12:03:04"


def put(folder: Path) -> None:
    """Make all of them below a folder, with the repository's own files beside them."""
    source = random.Random(5)
    for name in ("traces", "examples", "grafana"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("monday.jsonl", "tuesday.jsonl", "agents.jsonl"):
        shutil.copyfile(ROOT / "traces/poisson.jsonl", folder / name)
    rows = [
        f"2023-11-16 18:{minute:02}:{second:02}.0000000,{source.randint(20, 900)},"
        f"{source.randint(5, 300)}\n"
        for minute in range(12)
        for second in (3, 31)
    ]
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    (folder / "AzureLLMInferenceTrace_conv.csv").write_text(head + "".join(rows))
    mooncake = [
        {
            "timestamp": 9000 * each,
            "input_length": 700,
            "output_length": 40,
            "hash_ids": [0, 1 + each],
        }
        for each in range(60)
    ]
    (folder / "conversation_trace.jsonl").write_text("".join(map(_line, mooncake)))
    sharegpt = "num_prefill_tokens,num_decode_tokens,num_total_tokens\n74,918,992\n1010,20,1030\n"
    (folder / "FILE.csv").write_text(sharegpt)
    (folder / "sharegpt_8k_filtered_stats_llama2_tokenizer.csv").write_text(sharegpt)
    (folder / "own.toml").write_text("[policy]\neta = 0.8\n")
    (folder / "launches.txt").write_text("--model-path Qwen/Qwen3-8B --scheduler tokenflow\n")
    (folder / "decisions.jsonl").write_text(_decision())
    for place in ("", "gpu-results/"):
        (folder / place).mkdir(exist_ok=True)
        (folder / f"{place}measured.csv").write_text(_measured(source))
    load_profile("rtx4090", "llama3-8b").save(folder / "gpu-results/profile.json")


def put_runs(folder: Path) -> None:
    """Make the runs and sweeps that pages report, which replays would refuse to write over."""
    for name in ("stock", "tokenflow"):
        (folder / "sweeps" / name).mkdir(parents=True)
        figures = {goodput_of("itl<=1"): Estimate(2.0), share_of("itl<=1"): Estimate(0.9)}
        figures |= {key: Estimate(100.0) for key, _ in SHOWN.values()}
        points = (LoadPoint(8.0, ("concurrency-8",), 40, figures),)
        kind = LoadKind.concurrency
        write_sweep(folder / "sweeps" / name, LoadSweep(name, kind, "t", ("itl<=1",), None, points))
    for name in RUNS:
        run = synthetic.make_run("tokenflow" if name in ("runs/tokenflow", "with") else "stock")
        write_run(folder / name, run)


def _line(row: dict[str, object]) -> str:
    return json.dumps(row) + "\n"


def _decision() -> str:
    """A pause of the stream, and at the time, that the page asks about."""
    line: dict[str, object] = {
        "time": datetime.datetime.fromisoformat(NOON).timestamp(),
        "preempt": [{"rid": "7f3a91c2", "cause": "memory"}],
        "candidates": [],
        "admit": [],
        "take_up": [],
        "load": [],
        "device_free": 1,
        "device_total": 4,
        "streams": {"running": 1, "paused": 2, "waiting": 3},
    }
    return _line(line)


def _measured(source: random.Random) -> str:
    """Measurements of a device with the physical form (docs/devices.md)."""
    rows = ["kind,batch,tokens,context,seconds"]
    for _ in range(60):
        batch, context, tokens = (
            source.randint(*each) for each in ((1, 99), (50, 8000), (20, 4000))
        )
        work = tokens * (context + tokens / 2)
        rows.append(f"decode,{batch},,{context},{5e-3 + 2e-5 * batch + 3e-8 * batch * context}")
        rows.append(f"prefill,1,{tokens},{context},{8e-3 + 2e-5 * tokens + 2e-9 * work}")
        rows.append(f"load,,{tokens},,{1e-5 + tokens * 5e-6}")
        rows.append(f"store,,{tokens},,{2e-5 + tokens * 1e-5}")
    return "\n".join(rows) + "\n"
