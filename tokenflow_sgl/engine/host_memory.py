"""How much host memory the KV of paused streams gets, where no option of SGLang's says so.

SGLang takes twice the device's KV, and less if 80 % of what is free, behind a reserve of 10 GiB and
within the limits of control groups, holds less. Where the device has little KV, paused streams gain
from more, so here it is up to four times, but only as far as this server's share of the machine
goes: other servers may start on it at the same time, and see the same memory free. The share counts
accelerators, since a server on each is the most that there can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.unsupported import attention_dp
from tokenflow_sgl.host_pool import HOST_RATIO, raised_ratio

RESERVE = 10 << 30
"""Bytes of host memory that SGLang leaves free when it sizes HiCache."""
SLACK = 0.05
"""Share of what is free, and may be taken, that SGLang keeps for the ends of pages and the like."""
_LIMITED = 0.9
"""Less than this share of the machine's free memory within a limit: the limit counts."""
_MAKERS = ("0x10de", "0x1002")  # NVIDIA, AMD
_ACCELERATORS = ("0x03", "0x12")  # display controllers, of which GPUs are, and accelerators


@dataclass(frozen=True, slots=True)
class HostRoom:
    """What host memory there is.

    Attributes:
        free: Bytes that can be allocated, with the limits of control groups; None: not known.
        why: Why not.
        total: Bytes of the machine, or what is free within a limit that is less.
        devices: Accelerators whose servers share those; 0: not known.
    """

    free: int | None
    why: str = ""
    total: int = 0
    devices: int = 0


def host_room(root: Path = Path("/")) -> HostRoom:
    """Host memory of this machine, as SGLang finds it; root: of its file system."""
    import psutil
    from sglang.srt.mem_cache.host_memory import available_host_memory_bytes

    memory = psutil.virtual_memory()
    try:
        free = int(available_host_memory_bytes())
    except RuntimeError as error:
        return HostRoom(None, str(error.__cause__ or error))
    if free < _LIMITED * memory.available:
        return HostRoom(free, total=free, devices=_given(root))
    return HostRoom(free, total=int(memory.total), devices=_built_in(root))


def _given(root: Path) -> int:
    """Accelerators that this container was given."""
    given = len([*root.glob("dev/nvidia[0-9]*")])
    return given or len([*root.glob("dev/dri/render*")])


def _built_in(root: Path) -> int:
    """Accelerators of this machine, given to this container or not: of the most common maker."""
    found = dict.fromkeys(_MAKERS, 0)
    for device in root.glob("sys/bus/pci/devices/*"):
        try:
            maker, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if maker in found and kind.startswith(_ACCELERATORS):
            found[maker] += 1
    return max(found.values())


def local_ranks(record: ServerArgs) -> int:
    """Ranks of a launch on each of its machines, replicas counted."""
    return record.tp_size * record.pp_size * replicas(record) // max(1, record.nnodes) or 1


def replicas(record: ServerArgs) -> int:
    """Data-parallel replicas, each with ranks of its own, which know nothing of each other's."""
    # In its old spelling --dp-size counts groups of the same ranks.
    return record.dp_size if attention_dp(record) == record.attn_dp_size else 1


def left_bytes(room: HostRoom, ranks: int) -> int:
    """What is free for each of so many ranks behind the reserve, in bytes; that it is is known."""
    return max(0, (room.free or 0) - RESERVE) // ranks


def safe_bytes(room: HostRoom, ranks: int, fraction: float) -> int:
    """What SGLang lets each of so many ranks take of it at most.

    fraction: `--hicache-host-memory-fraction`.
    """
    return int(left_bytes(room, ranks) * fraction * (1 - SLACK))


def aimed_ratio(device_bytes: float, room: HostRoom, ranks: int, fraction: float) -> float:
    """Tokens of the host's pool over the device's to aim at; what is free may hold fewer.

    Args:
        device_bytes: Of KV on each rank's device.
        room: Of the machine.
        ranks: On this machine.
        fraction: `--hicache-host-memory-fraction`.
    """
    if not room.devices:
        return HOST_RATIO
    share = max(0, room.total - RESERVE) * fraction / max(room.devices, ranks)
    return raised_ratio(device_bytes, share * (1 - SLACK))
