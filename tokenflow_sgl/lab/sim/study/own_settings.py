"""SGLang's own settings, beside which one flag of ours is judged, and how to start each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokenflow_sgl.host_pool import raised_ratio
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.goal import Goal
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.sim.engine_options import EngineOptions
from tokenflow_sgl.lab.sim.schedulers.by_name import DECODE_INTERVAL, SMALL_CHUNK

DEFAULTS = "defaults"
TOKENFLOW = "tokenflow"
Felt = dict[str, float]
"""What readers feel of a run, by name: see `felt`."""


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """How a server is started, and what simulates that.

    Attributes:
        policy: Of the simulator.
        settings: SGLang's, on top of its defaults, as of `EngineOptions`.
        flags: Of the server.
        environment: Variables of the server.
    """

    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    flags: str = ""
    environment: str = ""


_SMALL_CHUNK = {"enable_mixed_chunk": True, "chunked_prefill_size": SMALL_CHUNK}
_MIXED = f"--enable-mixed-chunk --chunked-prefill-size {SMALL_CHUNK}"
_LITTLE = {"schedule_conservativeness": 0.3}
_CLIPPED = {"clip_max_new_tokens": 1024}
_CLIP = "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION=1024"
_HRRN, _SHORTEST = "--schedule-policy hrrn", "--schedule-policy shortest-prefill-first"
_HICACHE, _KEEP = "--enable-hierarchical-cache", "--schedule-conservativeness"

SETTINGS: Mapping[str, ServerSetting] = {
    DEFAULTS: ServerSetting("fcfs"),
    "HiCache": ServerSetting("fcfs-hicache", flags=_HICACHE),
    "lpm": ServerSetting("lpm", flags="--schedule-policy lpm"),
    "hrrn": ServerSetting("hrrn", flags=_HRRN),
    "shortest prefill": ServerSetting("shortest-prefill", flags=_SHORTEST),
    "mixed chunks of 2,048": ServerSetting("fcfs", _SMALL_CHUNK, _MIXED),
    "prefill interval 22": ServerSetting(
        "prefill-interval", flags=f"--prefill-decode-interval {DECODE_INTERVAL}"
    ),
    "conservativeness 0.3": ServerSetting("fcfs", _LITTLE, f"{_KEEP} 0.3"),
    "conservativeness 0.1": ServerSetting(
        "fcfs", {"schedule_conservativeness": 0.1}, f"{_KEEP} 0.1"
    ),
    "reserve of 1,024": ServerSetting("fcfs", _CLIPPED, environment=_CLIP),
    "hrrn, HiCache": ServerSetting("hrrn-hicache", flags=f"{_HRRN} {_HICACHE}"),
    "hrrn, mixed chunks": ServerSetting("hrrn", _SMALL_CHUNK, f"{_HRRN} {_MIXED}"),
    "hrrn, conservativeness 0.3": ServerSetting("hrrn", _LITTLE, f"{_HRRN} {_KEEP} 0.3"),
    "hrrn, reserve of 1,024": ServerSetting("hrrn", _CLIPPED, _HRRN, _CLIP),
    "shortest prefill, mixed chunks": ServerSetting(
        "shortest-prefill", _SMALL_CHUNK, f"{_SHORTEST} {_MIXED}"
    ),
    TOKENFLOW: ServerSetting("tokenflow", flags="--scheduler tokenflow"),
}
"""By name, SGLang's defaults first and ours last."""


def with_one_flag(profile: DeviceProfile, options: EngineOptions, ranks: int = 1) -> EngineOptions:
    """The options with the host's pool that the server chooses, if its machine has the memory.

    Args:
        profile: Of the device, or a group of them.
        options: SGLang's.
        ranks: Devices of the group.
    """
    ratio = raised_ratio(profile.kv_bytes_per_token * options.max_total_tokens / ranks)
    return replace(options, host_tokens=int(ratio * options.max_total_tokens))


def felt(run: Run, goal: Goal) -> Felt:
    """What readers feel of a run: seconds, tokens per second, and shares of the readers.

    Args:
        run: Of a simulator or a client.
        goal: What serves a reader well.
    """
    found = figures(run)
    latency, readers = found.latency, found.readers
    return {
        "requests": len(run.requests),
        "ttft_mean": latency.ttft.mean,
        "ttft_p99": latency.ttft.p99,
        "stalled_share": readers.stalled_share,
        "stall_seconds": readers.stall_seconds,
        "served_well": float(goal.met(run).mean()),
        "e2e_mean": latency.e2e.mean,
        "tbt_p99": latency.tbt.p99,
        "tokens_per_s": found.throughput.token,
        "effective_tokens_per_s": found.throughput.effective,
    }
