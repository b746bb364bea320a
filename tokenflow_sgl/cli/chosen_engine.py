"""What a command simulates: device, model, SGLang's settings, policies; and on which machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.choices import (
    Contender,
    IoBackend,
    MemLayout,
    PrefetchPolicy,
    Restoring,
    StorageWrites,
    WritePolicy,
)
from tokenflow_sgl.cli import storage_options
from tokenflow_sgl.cli.option_checks import finite
from tokenflow_sgl.lab.profiles import DEVICES, MODELS

if TYPE_CHECKING:
    from tokenflow_sgl.lab.profiles import DeviceProfile
    from tokenflow_sgl.lab.sim import EngineOptions
    from tokenflow_sgl.policy import WorkingSetConfig

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
        help="As SGLang's option. tokenflow mixes under stress without it, too.",
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


TuningFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Tuning file of a server (docs/flags.md), with the parameters that tokenflow is "
        "simulated with. Default: as shipped.",
    ),
]


def tuned_config(path: Path | None, console: Console) -> WorkingSetConfig:
    """The policy's parameters of a server's tuning file, or those shipped.

    Args:
        path: Of the file; None: there is none.
        console: Is told which parameters of the file no simulation has.

    Raises:
        ConfigError: The file cannot be used.
    """
    from tokenflow_sgl.policy import WorkingSetConfig

    if path is None:
        return WorkingSetConfig()
    from tokenflow_sgl.engine.config import ENGINE_TABLE, POLICY_TABLE, load_tuning

    found = load_tuning(str(path))
    if left := ", ".join(found[ENGINE_TABLE]):
        console.print(
            f"{path}: not simulated is [{ENGINE_TABLE}] {left}.", markup=False, soft_wrap=True
        )
    return WorkingSetConfig(**found[POLICY_TABLE])


def needed_for_times(device: str, profile: Path | None) -> tuple[str, ...]:
    """Modules that the step times of a device come from, unless a file has them."""
    known = profile is not None or DEVICES[device].system is None
    return () if known else ("aiconfigurator_core",)


@dataclass(frozen=True, kw_only=True)
class SimulatedServer:
    """SGLang's settings on a simulated device, one option each.

    Times are of `profile` or of the named device; sizes are KV tokens. The options' help texts say
    more of each.
    """

    profile: ProfileFile = None
    kv_tokens: KvTokens = None
    page_size: PageSize = 1
    sliding_window: SlidingWindow = 0
    swa_full_tokens_ratio: SwaRatio = 0.8
    hicache_ratio: HicacheRatio = 2.0
    hicache_write_policy: HostWrites = WritePolicy.write_through
    hicache_io_backend: IoBackends = IoBackend.kernel
    hicache_mem_layout: MemLayouts = MemLayout.page_first
    load_evict_overlap: LoadEvictOverlap = True
    storage_gbps: storage_options.StorageGbps = 0.0
    storage_latency_us: storage_options.StorageLatency = 1000.0
    storage_writes: storage_options.StorageCopies = StorageWrites.free
    hicache_storage_prefetch_policy: storage_options.StoragePrefetch = PrefetchPolicy.timeout
    restore: storage_options.Restore = Restoring.off
    chunked_prefill_size: ChunkedPrefillSize = None
    mixed_chunk: MixedChunk = False
    speculative_num_draft_tokens: DraftTokens = 1
    acceptance: Accepted = 1.0

    def open(self, device: str, model: str) -> tuple[DeviceProfile, EngineOptions]:
        """The device that serves the model, and SGLang's settings on it.

        Raises:
            ProfileError: There is no such device or model, or the file is not a profile.
        """
        from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile, pool
        from tokenflow_sgl.lab.sim import EngineOptions

        found = DeviceProfile.load(self.profile) if self.profile else load_profile(device, model)
        chunk = self.chunked_prefill_size
        if chunk is None:
            chunk = pool.chunked_prefill_size(found.device_memory)
        device_tokens = found.kv_pool_tokens if self.kv_tokens is None else self.kv_tokens
        return found, EngineOptions(
            max_total_tokens=device_tokens,
            page_size=self.page_size,
            sliding_window=self.sliding_window,
            swa_full_tokens_ratio=self.swa_full_tokens_ratio,
            host_tokens=int(self.hicache_ratio * device_tokens),
            hicache_write_policy=self.hicache_write_policy,
            hicache_io_backend=self.hicache_io_backend,
            hicache_mem_layout=self.hicache_mem_layout,
            load_evict_overlap=self.load_evict_overlap,
            chunked_prefill_size=chunk,
            enable_mixed_chunk=self.mixed_chunk,
            speculative_num_draft_tokens=self.speculative_num_draft_tokens,
            acceptance=self.acceptance,
            storage_gbps=self.storage_gbps,
            storage_latency_us=self.storage_latency_us,
            storage_writes=self.storage_writes,
            hicache_storage_prefetch_policy=self.hicache_storage_prefetch_policy,
            restore=self.restore,
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
        """The device that serves the model, and SGLang's settings on it; see `SimulatedServer`."""
        server = SimulatedServer(
            profile=self.profile,
            kv_tokens=self.kv_tokens,
            page_size=self.page_size,
            hicache_ratio=self.hicache_ratio,
            chunked_prefill_size=self.chunked_prefill_size,
        )
        return server.open(self.device, self.model)
