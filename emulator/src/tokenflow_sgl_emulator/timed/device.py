"""The emulated device of this process: what steps and copies take, and whether the CPU kept up.

A run means something only if the real work behind every step is done before the emulated device
would have finished it. So the device runs slower than real time by a factor, the *time dilation*,
and counts the steps for which even that was not enough. On a virtual clock every step is in time.
"""

import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.lab.profiles import DeviceProfile, Link
from tokenflow_sgl.lab.profiles.pieces import GATHERED, Pieces, load_pieces, store_pieces
from tokenflow_sgl_emulator.timed.clock import now, virtual_time
from tokenflow_sgl_emulator.timed.dilation import HIGHEST, LOWEST
from tokenflow_sgl_emulator.timed.timed_streams import Stream, current_stream

PROFILE_VARIABLE = "TOKENFLOW_EMU_PROFILE"
"""Path of the device profile (JSON); timing is on where it is set."""
DILATION_VARIABLE = "TOKENFLOW_EMU_TIME_DILATION"
"""Wall-clock seconds per emulated second; 1 where it is not set."""
SLOWER = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""Factors on the dilation for which it is counted what would still be late: what to try next."""


@dataclass(slots=True)
class StepCount:
    """What the device did so far; seconds are emulated ones.

    steps: forward passes. late_steps: those whose real work ended after their emulated end.
    busy_seconds: time that the device computed. starved_seconds: time that it stood idle although
    requests were running, because the CPU had not submitted the next step yet.
    """

    steps: int = 0
    late_steps: int = 0
    busy_seconds: float = 0.0
    starved_seconds: float = 0.0


@dataclass(slots=True)
class Slower:
    """What would have been late or starved at a larger dilation, as in `StepCount`.

    The CPU's work takes the same wall-clock time there, while every step has longer for it.
    """

    late_steps: int = 0
    starved_seconds: float = 0.0


LARGE_BYTES = 320_000
"""Bytes of a piece that fill a PCIe 4 link (FastSwitch, section 2.2)."""


@dataclass(slots=True)
class CopyCount:
    """KV copies in one direction.

    transfers: copies that SGLang asked for. tokens: of them all. host_runs, device_runs: stretches
    of consecutive token slots on either side. runs: those that are consecutive on both sides.
    large_tokens: tokens of runs that are `LARGE_BYTES` or more in each of the device's buffers.
    calls, pieces: how they were issued (`profiles.pieces.Pieces`).
    """

    transfers: int = 0
    tokens: int = 0
    host_runs: int = 0
    device_runs: int = 0
    runs: int = 0
    large_tokens: int = 0
    calls: int = 0
    pieces: int = 0

    def add(self, host_slots: torch.Tensor, device_slots: torch.Tensor, large: float) -> int:
        """One more transfer, between these token slots.

        Args:
            host_slots: On the host.
            device_slots: On the device, in the same order.
            large: Tokens of a run from which on it is large.

        Returns:
            Its runs.
        """
        host_gaps, device_gaps = host_slots.diff() != 1, device_slots.diff() != 1
        gaps = host_gaps | device_gaps
        ends = torch.cat([gaps.nonzero().flatten() + 1, torch.tensor([len(host_slots)])])
        lengths = ends.diff(prepend=torch.tensor([0]))
        self.transfers += 1
        self.tokens += len(host_slots)
        self.host_runs += 1 + int(host_gaps.sum())
        self.device_runs += 1 + int(device_gaps.sum())
        self.runs += len(lengths)
        self.large_tokens += int(lengths[lengths >= large].sum())
        return len(lengths)

    def issue(self, issued: Pieces) -> None:
        """How the transfer, or a layer of it, was issued."""
        self.calls += issued.calls
        self.pieces += issued.pieces


class EmulatedDevice:
    """Keeps the time of one device; every duration that goes in is in emulated seconds.

    Args:
        profile: The target device with its model.
        dilation: Wall-clock seconds per emulated second.

    Attributes:
        large: Tokens of a run from which on it is large (`CopyCount`).
    """

    def __init__(self, profile: DeviceProfile, dilation: float) -> None:
        if not LOWEST <= dilation <= HIGHEST:
            raise ValueError(
                f"{DILATION_VARIABLE} is {dilation!r}; allowed is a factor from {LOWEST:g} to "
                f"{HIGHEST:g}"
            )
        self.profile = profile
        self.dilation = dilation
        self.count = StepCount()
        self.slower = {factor: Slower() for factor in SLOWER}
        self.stored, self.loaded = CopyCount(), CopyCount()
        self._load: torch.Tensor | None = None  # the host's places, whose layers are being copied
        self._runs = 0  # of these
        # KV on the device is K and V of each layer, apart.
        self.large = LARGE_BYTES * 2 * profile.layers / profile.kv_bytes_per_token
        self._computed_until: float | None = None  # None: idle, so no gap to account for
        self._began = 0.0
        self._computed = 0.0  # wall-clock seconds of the last step

    def check_model(self, model: Any) -> None:
        """Make sure that steps of this model take time.

        Raises:
            RuntimeError: It is not an emulated one, or has other layers than the profile's model.
        """
        if getattr(model, "device_", None) is not self:
            raise RuntimeError(
                f"the model is {type(model).__name__}, whose steps take no time of the emulated "
                "device. Allowed is what model_folder.write_model_folder writes, as "
                "tokenflow serve-emulated does."
            )
        layers = model.config.num_hidden_layers
        if layers != self.profile.layers:
            raise RuntimeError(
                f"the model has {layers} layers, and the profile is of {self.profile.layers}: "
                "copies of KV would not take their time. Allowed are as many."
            )

    def begin_step(self) -> Stream:
        """A forward pass is submitted: it starts on this stream, not before now."""
        stream, submitted = current_stream(), now()
        stream.done_at = max(stream.done_at, submitted)
        # Not until the stream is ready: a copy that the step waits for is the device's own work.
        if self._computed_until is not None and submitted > self._computed_until:
            self._starve(submitted - self._computed_until)
        self._began = stream.done_at
        return stream

    def _starve(self, gap: float) -> None:
        """No step was there for so long, by the wall clock, after the last one was computed."""
        self.count.starved_seconds += gap / self.dilation
        for factor, slower in self.slower.items():
            left = self._computed + gap - factor * self._computed
            slower.starved_seconds += max(left, 0.0) / (factor * self.dilation)

    def compute(self, stream: Stream, seconds: float) -> None:
        """The step computes for so long."""
        stream.done_at += seconds * self.dilation
        self.count.busy_seconds += seconds

    def end_step(self, stream: Stream) -> None:
        """The real work of the step is done: in time?"""
        self.count.steps += 1
        self._computed = stream.done_at - self._began
        late_s = now() - stream.done_at
        if late_s > 0.0:
            self.count.late_steps += 1
            for factor, slower in self.slower.items():
                slower.late_steps += self._computed + late_s > factor * self._computed
        self._computed_until = stream.done_at

    def copy(self, tokens: int, layers: int, link: Link, issued: Pieces = GATHERED) -> None:
        """Copy that many layers of some tokens' KV over a link, on the current stream."""
        n_bytes = tokens * self.profile.kv_bytes_per_token * layers / self.profile.layers
        seconds = self.profile.pieces.seconds(link, n_bytes, issued)
        current_stream().enqueue(seconds * self.dilation)

    def copy_layer(self, tokens: int, to_device: bool) -> None:
        """Copy one layer of some tokens' KV, gathered into large pieces."""
        profile = self.profile
        self.copy(tokens, 1, profile.host_to_device if to_device else profile.device_to_host)

    def load_layer(
        self,
        slots: tuple[torch.Tensor, torch.Tensor],
        layer: int,
        page: int,
        backend: str,
        layout: str,
    ) -> None:
        """Take the time of one layer of a load.

        Args:
            slots: Of its tokens, on the host and on the device; whole pages.
            layer: Layers of a load come in order, not necessarily from 0 on.
            page: Tokens of a page.
            backend: HiCache's I/O backend.
            layout: Its layout of host memory.
        """
        tokens = len(slots[0])
        if layer == 0 or slots[0] is not self._load:
            self._load, self._runs = slots[0], self.loaded.add(*slots, self.large)
        issued = load_pieces(
            IoBackend(backend), MemLayout(layout), layers=1, pages=tokens // page, runs=self._runs
        )
        self.loaded.issue(issued)
        self.copy(tokens, 1, self.profile.host_to_device, issued)

    def store(
        self, slots: tuple[torch.Tensor, torch.Tensor], page: int, backend: str, layout: str
    ) -> None:
        """Take the time of a copy of all layers to the host; arguments as above."""
        tokens, layers = len(slots[0]), self.profile.layers
        issued = store_pieces(
            IoBackend(backend),
            MemLayout(layout),
            layers=layers,
            pages=tokens // page,
            runs=self.stored.add(*slots, self.large),
            page_bytes=page * self.profile.kv_bytes_per_token,
        )
        self.stored.issue(issued)
        self.copy(tokens, layers, self.profile.device_to_host, issued)

    def idle(self) -> None:
        """Nothing is running: what follows is no gap between steps."""
        self._computed_until = None

    def report(self) -> dict[str, Any]:
        """What clients are told: see ``/server_info``."""
        return {
            "device": self.profile.device,
            "model": self.profile.model,
            "source": self.profile.source,
            "time_dilation": self.dilation,
            "virtual_time": virtual_time(),
            "steps": self.count.steps,
            "late_steps": self.count.late_steps,
            "busy_seconds": self.count.busy_seconds,
            "starved_seconds": self.count.starved_seconds,
            "at_dilation": {
                f"{factor * self.dilation:g}": asdict(slower)
                for factor, slower in self.slower.items()
            },
            "stored": asdict(self.stored),
            "loaded": asdict(self.loaded),
        }


def timing_is_on() -> bool:
    """Whether this process emulates a device and not only a platform."""
    return bool(os.environ.get(PROFILE_VARIABLE))


def dilation() -> float:
    """Wall-clock seconds per emulated second.

    Raises:
        ValueError: The environment variable is not a number.
    """
    text = os.environ.get(DILATION_VARIABLE, "1")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{DILATION_VARIABLE} is {text!r}; allowed is a number") from None


@cache
def the_device() -> EmulatedDevice:
    """The device of this process, made of its environment on first use."""
    return EmulatedDevice(DeviceProfile.load(Path(os.environ[PROFILE_VARIABLE])), dilation())
