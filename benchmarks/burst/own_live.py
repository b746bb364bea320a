"""What one flag gives, in real SGLang: the device's own memory, on an emulated device.

    python benchmarks/burst/own_live.py 4090-a h200-a
    python benchmarks/burst/own_live.py azure-4x --file AzureLLMInferenceTrace_conv.csv
    python benchmarks/burst/own_live.py 4090-a --setting tokenflow --setting "reserve of 1,024"
    python benchmarks/burst/own_live_tables.py

The setting of `own_memory.py`: as many KV tokens as SGLang allocates on the device, HiCache's
default of twice that on the host, and unknown lengths. Each of SGLang's settings gets a server of
its own, one after the other, and the very same requests, in virtual time. The simulator then serves
the same requests under the same setting. Runs are kept under --output, the figures in
benchmarks/results/own_memory_live/WORKLOAD.json. At the end the tables are written into README.md
of this folder; `own_live_tables.py` does that alone, from the files.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import served
from compared import DEFAULTS, TOKENFLOW
from own_live_tables import RESULTS, write_tables
from rich.console import Console
from run import keep, measure, warm_up_burst
from suite import MODEL, Load

from tokenflow_sgl.cli.chosen_trace import TraceChoice
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.lab.sim import simulate


@dataclass(frozen=True, slots=True)
class Setting:
    """What a server is started with.

    Attributes:
        options: SGLang's options.
        env: Environment variables.
    """

    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


_SHORTEST = ("--schedule-policy", "shortest-prefill-first")
_MIXED = ("--enable-mixed-chunk", "--chunked-prefill-size", "2048")

SETTINGS = {
    TOKENFLOW: Setting(("--scheduler", "tokenflow")),
    DEFAULTS: Setting(),
    "reserve of 1,024": Setting(env={"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "1024"}),
    "shortest prefill, mixed chunks": Setting((*_SHORTEST, *_MIXED)),
    "hrrn": Setting(("--schedule-policy", "hrrn")),
    "mixed chunks of 2,048": Setting(_MIXED),
    "shortest prefill": Setting(_SHORTEST),
}
"""By the names of `served.SETTINGS`."""


def _load(trace: str, device: str, replay: tuple[str, ...] = ()) -> Load:
    return Load(trace, device, load_profile(device, MODEL).kv_pool_tokens, 1.0, replay)


LOADS = {
    "4090-a": _load("4090-a", "rtx4090"),
    "4090-b": _load("4090-b", "rtx4090"),
    "h200-a": _load("h200-a", "h200"),
    "h200-b": _load("h200-b", "h200"),
    "azure-4x": _load(
        "azure:FILE", "h200", ("--window", "1560:300", "--speed-up", "4", "--rate", "20")
    ),
    "mooncake": _load("mooncake:FILE", "h200", ("--window", "0:180", "--rate", "20")),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", choices=LOADS, metavar="WORKLOAD")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="default: all")
    parser.add_argument("--file", type=Path, help="trace file of azure-4x or mooncake")
    parser.add_argument("--output", type=Path, default=Path("own-live-results"))
    args = parser.parse_args()
    for name in args.workloads:
        load = LOADS[name]
        if "FILE" in load.trace and args.file is None:
            parser.error(f"{name} needs --file")
        trace = load.trace.replace("FILE", str(args.file))
        for label in args.setting or SETTINGS:
            setting = SETTINGS[label]
            folder = args.output / name / label.replace(" ", "-").replace(",", "")
            with patch.dict(os.environ, setting.env):
                measure(load, trace, label, setting.options, folder, None)
            write(name, load, trace, label, folder)
    write_tables()


def write(name: str, load: Load, trace: str, label: str, folder: Path) -> None:
    """Add the figures of a run in `folder`, and the simulator's of the same, to the results."""
    requests = read_run(folder).requests.to_pandas()
    whole = requests["output_tokens"] == requests["requested_tokens"]
    setting = SETTINGS[label]
    more = {
        "time": "virtual",
        "env": setting.env,
        "answers": {"requests": len(requests), "of_the_length_asked_for": int(whole.sum())},
        "figures": served.felt(read_run(folder)),
        "simulated": simulated(load, trace, label),
    }
    keep(RESULTS / f"{name}.json", name, load, trace, label, setting.options, folder, **more)


def simulated(load: Load, trace: str, label: str) -> dict[str, float]:
    """The simulator's figures of the same requests, device and setting."""
    given = dict(zip(load.replay[::2], load.replay[1::2], strict=True))
    chosen = TraceChoice(
        window=given.get("--window"),
        speed_up=float(given["--speed-up"]) if "--speed-up" in given else None,
        rate=given.get("--rate"),
    ).open(trace, Console(stderr=True))
    policy, settings = served.SETTINGS[label]
    on = served.machine(load.device, MODEL, **settings)
    return served.read(simulate(chosen, *on, policy=policy, warm_up_burst=warm_up_burst(load)))


if __name__ == "__main__":
    main()
