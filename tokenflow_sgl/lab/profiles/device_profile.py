"""Times of a model's steps and copies on a device: the numbers that replace the hardware.

The emulator and the simulator ask a `DeviceProfile` how long a step takes; nothing here measures.
Where the numbers come from is in `source`, and in docs/devices.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.profiles import document
from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.launch import NO_LAUNCH, Launch
from tokenflow_sgl.lab.profiles.link import Link
from tokenflow_sgl.lab.profiles.pieces import GATHERED, NO_PIECE_COSTS, PieceCosts, Pieces
from tokenflow_sgl.lab.profiles.tables import DecodeTable, PrefillTable

_PIECES = tuple(item.name for item in fields(PieceCosts))


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Times and sizes of one model on one device, without any engine.

    Attributes:
        device: Name of the device.
        model: Name of the model.
        source: Where the times come from, in words, with versions.
        layers: Transformer layers that hold KV.
        kv_bytes_per_token: Bytes of KV per token, over all layers, and all devices of a group.
        device_memory: Bytes of memory of one device: SGLang's defaults go by it.
        weight_bytes: Bytes of the model's weights.
        kv_pool_tokens: KV tokens that fit on the device with SGLang's usual share of memory
            (`profiles.pool`).
        host_pool_tokens: KV tokens of the host pool with SGLang's usual ratio (`profiles.pool`).
        host_to_device: Loads.
        device_to_host: Write-backs.
        decode: Seconds of decode steps, for the device.
        prefill: Seconds of prefill steps, for the device.
        launch: Seconds that steps take at least, for the CPU.
        pieces: What the pieces of a copy cost beside its bytes.

    Raises:
        ProfileError: A value is outside its range.
    """

    device: str
    model: str
    source: str
    layers: int
    kv_bytes_per_token: int
    device_memory: int
    weight_bytes: int
    kv_pool_tokens: int
    host_pool_tokens: int
    host_to_device: Link
    device_to_host: Link
    decode: DecodeTable
    prefill: PrefillTable
    launch: Launch = NO_LAUNCH
    pieces: PieceCosts = NO_PIECE_COSTS

    def __post_init__(self) -> None:
        for name in ("device", "model", "source"):
            if not getattr(self, name).strip():
                raise ProfileError(f"{name} is empty; a profile must name it.")
        for name in (
            "layers",
            "kv_bytes_per_token",
            "device_memory",
            "weight_bytes",
            "kv_pool_tokens",
            "host_pool_tokens",
        ):
            if getattr(self, name) < 1:
                raise ProfileError(f"{name} is {getattr(self, name)!r}; allowed is 1 or more.")

    def decode_seconds(self, batch: int, context: int) -> float:
        """Time of one decode step.

        Args:
            batch: Rows of the step; 0 takes no time.
            context: Sum of the KV tokens that all rows read.

        Returns:
            Seconds: non-decreasing in the context, and in the batch at the same mean context.
        """
        if batch <= 0:
            return 0.0
        seconds = self.decode.at(batch, context / batch)
        return max(seconds, self.launch.decode) if batch > self.launch.graph_rows else seconds

    def prefill_seconds(self, tokens: int, attention: float) -> float:
        """Time of one prefill step.

        Args:
            tokens: New tokens over all requests of the step; 0 takes no time.
            attention: Sum of `costs.attention_work` over the requests of the step.

        Returns:
            Seconds: non-decreasing in the attention, and in the tokens at the same mean.
        """
        if tokens <= 0:
            return 0.0
        return max(self.prefill.at(tokens, attention / tokens), self.launch.prefill)

    def mixed_seconds(self, tokens: int, attention: float, batch: int, context: int) -> float:
        """Time of a step that SGLang runs as a prefill, with rows that get one token in it.

        The rows go through the linear layers with the chunk, as so many more tokens; their
        attention comes on top, as what the context adds to a decode step of theirs.

        Args:
            tokens: New tokens of the chunk; 0 makes it the time of the rows.
            attention: As in `prefill_seconds`.
            batch: Rows with one new token; 0 makes it a prefill step.
            context: As in `decode_seconds`.

        Returns:
            Seconds, at least those of the prefill and of the rows alone.
        """
        if batch <= 0:
            return self.prefill_seconds(tokens, attention)
        rows = self.decode.at(batch, context / batch)
        if tokens <= 0:
            return max(rows, self.launch.prefill)
        shared = self.prefill.at(tokens + batch, attention / (tokens + batch))
        alone = self.prefill.at(tokens, attention / tokens)
        together = shared + rows - self.decode.at(batch, 0)
        return max(alone, rows, together, self.launch.prefill)

    def load_seconds(self, tokens: int, issued: Pieces = GATHERED) -> float:
        """Time to bring `tokens` of KV back from host memory in one transfer."""
        n_bytes = tokens * self.kv_bytes_per_token
        return self.pieces.seconds(self.host_to_device, n_bytes, issued)

    def store_seconds(self, tokens: int, issued: Pieces = GATHERED) -> float:
        """Time to copy `tokens` of KV to host memory in one transfer."""
        n_bytes = tokens * self.kv_bytes_per_token
        return self.pieces.seconds(self.device_to_host, n_bytes, issued)

    def save(self, path: Path) -> None:
        """Write the profile as JSON, numbers exactly."""
        document.write(path, _content(self))

    @classmethod
    def load(cls, path: Path) -> DeviceProfile:
        """Read a profile that `save` wrote.

        Raises:
            ProfileError: The file is not such a profile; the message names file, field and rule.
        """
        content = document.read(path)
        try:
            return _profile(content)
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None


def _content(profile: DeviceProfile) -> dict[str, object]:
    content = {item.name: getattr(profile, item.name) for item in fields(DeviceProfile)}
    for name in ("host_to_device", "device_to_host"):
        link: Link = content[name]
        content[name] = {"bandwidth": link.bandwidth, "latency": link.latency}
    for name in ("launch", "pieces"):
        content[name] = asdict(content[name])
    for name in ("decode", "prefill"):
        # Not asdict: it would include the table's private surface.
        content[name] = {
            item.name: getattr(content[name], item.name)
            for item in fields(content[name])
            if item.init
        }
    return content


def _profile(content: dict[str, Any]) -> DeviceProfile:
    # Profiles that earlier releases wrote have none of these.
    content = {"launch": asdict(NO_LAUNCH), "pieces": asdict(NO_PIECE_COSTS), **content}
    if isinstance(content["pieces"], dict):
        content["pieces"] = {"between": 0.0, **content["pieces"]}
    read = document.Fields(content, "the profile", {item.name for item in fields(DeviceProfile)})
    decode = read.inner("decode", {"batch", "context", "seconds"})
    prefill = read.inner("prefill", {"tokens", "attended", "seconds"})
    launch = read.inner("launch", {item.name for item in fields(Launch)})
    pieces = read.inner("pieces", set(_PIECES))
    return DeviceProfile(
        device=read.text("device"),
        model=read.text("model"),
        source=read.text("source"),
        layers=read.integer("layers"),
        kv_bytes_per_token=read.integer("kv_bytes_per_token"),
        device_memory=read.integer("device_memory"),
        weight_bytes=read.integer("weight_bytes"),
        kv_pool_tokens=read.integer("kv_pool_tokens"),
        host_pool_tokens=read.integer("host_pool_tokens"),
        host_to_device=_link(read, "host_to_device"),
        device_to_host=_link(read, "device_to_host"),
        decode=DecodeTable(
            decode.numbers("batch"), decode.numbers("context"), decode.table("seconds")
        ),
        prefill=PrefillTable(
            prefill.numbers("tokens"), prefill.numbers("attended"), prefill.table("seconds")
        ),
        launch=Launch(
            launch.number("prefill"), launch.number("decode"), launch.integer("graph_rows")
        ),
        pieces=PieceCosts(*(pieces.number(name) for name in _PIECES)),
    )


def _link(read: document.Fields, name: str) -> Link:
    link = read.inner(name, {"bandwidth", "latency"})
    return Link(link.number("bandwidth"), link.number("latency"))
