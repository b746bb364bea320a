"""What a command simulates: device, model, SGLang's settings, policies; and on which machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenflow_sgl.choices import (
    Contender,
    IoBackend,
    MemLayout,
    WritePolicy,
)
from tokenflow_sgl.cli.option_checks import finite
from tokenflow_sgl.lab.profiles import DEVICES, MODELS

if TYPE_CHECKING:
    from tokenflow_sgl.lab.profiles import DeviceProfile
    from tokenflow_sgl.lab.sim import EngineOptions

_SERVER = "The server"
_MOST_TOKENS = 10**9
"""Largest size in tokens that is accepted: above every device, and sums of sizes stay exact."""

if TYPE_CHECKING:
    DeviceName = str
    ModelName = str
else:
    # The command line lists an enumeration's values and refuses all others.
    DeviceName = StrEnum("DeviceName", {name: name for name in DEVICES})
    ModelName = StrEnum("ModelName", {name: name for name in MODELS})

DEFAULT_DEVICE = DeviceName("h200")
DEFAULT_MODEL = ModelName("llama3-8b")

Device = Annotated[
    DeviceName, typer.Option(help="Device; `tokenflow profile list` describes them.")
]
Model = Annotated[ModelName, typer.Option(help="Model.")]
Policies = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Policies to compare, separated by commas; the first is the baseline. Each is "
        f"one of {', '.join(Contender)}, or your own, as package.module:Class.",
    ),
]
DEFAULT_POLICIES = "fcfs,tokenflow"
OnRay = Annotated[
    bool, typer.Option("--ray", help="Run on a Ray cluster: RAY_ADDRESS, or this machine's cores.")
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Device profile to use instead, made by `tokenflow profile fit` or `show --save`.",
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_TOKENS,
        help="KV tokens on the device. Default: as many as SGLang would allocate.",
        rich_help_panel=_SERVER,
    ),
]
PageSize = Annotated[
    int,
    typer.Option(
        min=1,
        max=1024,
        help="Tokens per KV page, as SGLang's option.",
        rich_help_panel=_SERVER,
    ),
]
SlidingWindow = Annotated[
    int,
    typer.Option(
        min=0,
        max=_MOST_TOKENS,
        metavar="TOKENS",
        help="Of the window of some of the model's layers, whose KV has a pool of its own; 0: all "
        "layers have all tokens. Steps take what the profile says all the same.",
        rich_help_panel=_SERVER,
    ),
]
SwaRatio = Annotated[
    float,
    typer.Option(
        help="Tokens of that pool over KV tokens on the device, as SGLang's option.",
        rich_help_panel=_SERVER,
    ),
]
HicacheRatio = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1000.0,
        callback=finite,
        help="KV tokens on the host for each one on the device, for policies that preempt.",
        rich_help_panel=_SERVER,
    ),
]
HostWrites = Annotated[
    WritePolicy,
    typer.Option(
        help="When KV is copied to the host: write_through, as soon as no running stream uses it, "
        "or write_back, when its device memory is needed.",
        rich_help_panel=_SERVER,
    ),
]
IoBackends = Annotated[
    IoBackend,
    typer.Option(
        help="What copies KV to and from the host, as SGLang's option. Matters with a --profile "
        "that says what pieces of copies cost.",
        rich_help_panel=_SERVER,
    ),
]
MemLayouts = Annotated[
    MemLayout,
    typer.Option(
        help="Layout of host memory, as SGLang's option. page_first is page_first_direct with the "
        "I/O backend direct.",
        rich_help_panel=_SERVER,
    ),
]
KnownLengths = Annotated[
    bool,
    typer.Option(
        "--known-lengths",
        help="Let the server know when each answer ends: every limit is the answer's length. "
        "Default: the server sees the client's limit, of the trace or else 4096 (32768 where the "
        "answer begins with thinking).",
        rich_help_panel=_SERVER,
    ),
]
LoadEvictOverlap = Annotated[
    bool,
    typer.Option(
        help="Whether copies to and from the host run at the same time.",
        rich_help_panel=_SERVER,
    ),
]
ChunkedPrefillSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_TOKENS,
        help="Most tokens of a prefill step. Default: SGLang's for the device.",
        rich_help_panel=_SERVER,
    ),
]
MixedChunk = Annotated[
    bool,
    typer.Option(
        "--enable-mixed-chunk",
        help="As SGLang's option, for stock SGLang.",
        rich_help_panel=_SERVER,
    ),
]
DraftTokens = Annotated[
    int,
    typer.Option(
        min=1,
        max=1024,
        help="Tokens that a decode step verifies of a stream, as SGLang's option; 1: its own.",
        rich_help_panel=_SERVER,
    ),
]
Accepted = Annotated[
    float,
    typer.Option(
        min=1.0,
        callback=finite,
        help="Tokens that a decode step gives a stream on average, with speculation.",
        rich_help_panel=_SERVER,
    ),
]


def needed_for_times(device: str, profile: Path | None) -> tuple[str, ...]:
    """Modules that the step times of a device come from, unless a file has them."""
    known = profile is not None or DEVICES[device].system is None
    return () if known else ("aiconfigurator_core",)


def open_engine(
    device: str,
    model: str,
    profile: Path | None,
    *,
    kv_tokens: int | None,
    hicache_ratio: float,
    page_size: int = 1,
    sliding_window: int = 0,
    swa_full_tokens_ratio: float = 0.8,
    hicache_write_policy: str = "write_through",
    hicache_io_backend: str = "kernel",
    hicache_mem_layout: str = "page_first",
    load_evict_overlap: bool = True,
    chunked_prefill_size: int | None = None,
    mixed_chunk: bool = False,
    speculative_num_draft_tokens: int = 1,
    acceptance: float = 1.0,
    storage_gbps: float = 0.0,
    storage_latency_us: float = 1000.0,
    storage_writes: str = "free",
    hicache_storage_prefetch_policy: str = "timeout",
    restore: str = "off",
) -> tuple[DeviceProfile, EngineOptions]:
    """The device, and SGLang's settings on it.

    Raises:
        ProfileError: There is no such device or model, or the file is not a profile.
    """
    from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile, pool
    from tokenflow_sgl.lab.sim import EngineOptions

    found = DeviceProfile.load(profile) if profile else load_profile(device, model)
    if chunked_prefill_size is None:
        chunked_prefill_size = pool.chunked_prefill_size(found.device_memory)
    device_tokens = found.kv_pool_tokens if kv_tokens is None else kv_tokens
    return found, EngineOptions(
        max_total_tokens=device_tokens,
        page_size=page_size,
        sliding_window=sliding_window,
        swa_full_tokens_ratio=swa_full_tokens_ratio,
        host_tokens=int(hicache_ratio * device_tokens),
        hicache_write_policy=hicache_write_policy,
        hicache_io_backend=hicache_io_backend,
        hicache_mem_layout=hicache_mem_layout,
        load_evict_overlap=load_evict_overlap,
        chunked_prefill_size=chunked_prefill_size,
        enable_mixed_chunk=mixed_chunk,
        speculative_num_draft_tokens=speculative_num_draft_tokens,
        acceptance=acceptance,
        storage_gbps=storage_gbps,
        storage_latency_us=storage_latency_us,
        storage_writes=storage_writes,
        hicache_storage_prefetch_policy=hicache_storage_prefetch_policy,
        restore=restore,
    )


@dataclass(frozen=True, kw_only=True)
class StudiedServer:
    """The options of a study that simulates one server under many loads or settings."""

    device: Device = DEFAULT_DEVICE
    model: Model = DEFAULT_MODEL
    profile: ProfileFile = None
    kv_tokens: KvTokens = None
    page_size: PageSize = 1
    hicache_ratio: HicacheRatio = 2.0
    chunked_prefill_size: ChunkedPrefillSize = None
    known_lengths: KnownLengths = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules that `open` needs."""
        return needed_for_times(self.device, self.profile)

    def open(self) -> tuple[DeviceProfile, EngineOptions]:
        """As `open_engine`."""
        return open_engine(
            self.device,
            self.model,
            self.profile,
            kv_tokens=self.kv_tokens,
            page_size=self.page_size,
            hicache_ratio=self.hicache_ratio,
            chunked_prefill_size=self.chunked_prefill_size,
        )
