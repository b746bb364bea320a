"""Devices that profiles are made for: memory, peak rates and the link to the host.

A group of devices serves a model tensor-parallel: each has a share of its weights and of its KV,
and all-reduces pass through the devices' links to each other twice in every layer. Groups of SXM
devices reduce over NVLink, whose times aiconfigurator-core has; the others over PCIe.

`memory` is what ``nvidia-smi`` reports. `bandwidth` and `flops` are peak figures of the vendor's
data sheets, FLOPs of dense bfloat16 with float32 accumulation; where aiconfigurator-core has the
device they are those of its system files, so that both sources speak of the same hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenflow_sgl.lab.profiles.link import Link
from tokenflow_sgl.lab.profiles.pieces import ESTIMATED, HOPPER, PieceCosts

PCIE_3 = Link(bandwidth=12.5e9, latency=10e-6)
"""PCIe 3.0 x16 with pinned memory: 12.5 of the 15.75 GB/s per direction, as of PCIe 4."""
PCIE_4 = Link(bandwidth=25e9, latency=10e-6)
"""PCIe 4.0 x16 with pinned memory: 25 of the 31.5 GB/s per direction, 10 us to start a copy."""
PCIE_5 = Link(bandwidth=55e9, latency=5e-6)
"""PCIe 5.0 x16 with pinned memory: 55 of the 63 GB/s per direction, 5 us to start a copy.

Measured on an H200 and an H100 (`benchmarks/results/gpu`); other hosts may be slower.
"""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or a group of the same ones.

    Attributes:
        name: What profiles call it.
        title: What its vendor calls it.
        memory: Bytes of memory of one device.
        bandwidth: Peak bytes per second of the memory of one device.
        flops: Peak dense bfloat16 FLOPs per second of one device.
        link: One direction of the connection to host memory, of all devices of the group together;
            both are alike.
        link_name: What that connection is.
        system: Its name in aiconfigurator-core; None: not there, so that step times come from
            the roofline.
        ranks: Devices of the group.
        pieces: What copies in pieces cost, for those who ask for it.
    """

    name: str
    title: str
    memory: int
    bandwidth: float
    flops: float
    link: Link
    link_name: str
    system: str | None = None
    ranks: int = 1
    pieces: PieceCosts = ESTIMATED


def _group(device: Device, ranks: int, per_link: int = 1) -> Device:
    """A group of this device, `per_link` of which share a connection to the host."""
    links = ranks // per_link
    return replace(
        device,
        name=f"{device.name}x{ranks}",
        title=f"{ranks} x {device.title}",
        link=replace(device.link, bandwidth=links * device.link.bandwidth),
        link_name=f"{links} x {device.link_name}" if links > 1 else device.link_name,
        ranks=ranks,
    )


_H200 = Device(
    name="h200",
    title="H200 SXM 141 GB",
    memory=143771 * _MIB,
    bandwidth=4.8e12,
    flops=989e12,
    link=PCIE_5,
    link_name="PCIe 5 x16",
    system="h200_sxm",
    pieces=HOPPER,
)
_H100 = Device(
    name="h100",
    title="H100 SXM 80 GB",
    memory=81559 * _MIB,
    bandwidth=3.35e12,
    flops=989e12,
    link=PCIE_5,
    link_name="PCIe 5 x16",
    system="h100_sxm",
    pieces=HOPPER,
)
_A100 = Device(
    name="a100",
    title="A100 SXM 80 GB",
    memory=81920 * _MIB,
    bandwidth=2.039e12,
    flops=312e12,
    link=PCIE_4,
    link_name="PCIe 4 x16",
    system="a100_sxm",
)
_A100_PER_LINK = 2
"""A PCIe switch of NVIDIA's DGX A100 has two GPUs behind one connection to the CPU; of its block
diagram: https://vengineer.hatenablog.com/entry/2022/05/02/090000. In servers with H100, each has
its own: `nvidia-smi topo -m` of an HGX H100 in https://github.com/NVIDIA/nccl/issues/1264."""
_A6000 = Device(
    name="a6000",
    title="RTX A6000 48 GB",
    memory=49140 * _MIB,
    bandwidth=768e9,
    flops=154.8e12,
    link=PCIE_4,
    link_name="PCIe 4 x16",
)
_A5000 = Device(
    name="a5000",
    title="RTX A5000 24 GB",
    memory=24564 * _MIB,
    bandwidth=768e9,
    flops=111.1e12,
    link=PCIE_4,
    link_name="PCIe 4 x16",
)
_A5000_PCIE_3 = replace(_A5000, name="a5000pcie3", link=PCIE_3, link_name="PCIe 3 x16")
_L20 = Device(
    name="l20",
    title="L20 48 GB",
    memory=46068 * _MIB,
    bandwidth=864e9,
    flops=119.5e12,
    link=PCIE_4,
    link_name="PCIe 4 x16",
)
_L20_PER_LINK = 2
"""Of LayerKV's evaluation (section 5.1): "each two GPUs share one PCIe connection"."""


def _by_name(*devices: Device) -> Mapping[str, Device]:
    return {device.name: device for device in devices}


DEVICES: Mapping[str, Device] = _by_name(
    _H200,
    _group(_H200, 8),
    _H100,
    _group(_H100, 2),
    _group(_H100, 4),
    _group(_H100, 8),
    _A100,
    _group(_A100, 4, _A100_PER_LINK),
    Device(
        name="b200",
        title="B200 SXM 180 GB",
        memory=183359 * _MIB,
        bandwidth=7.7e12,
        flops=2250e12,
        link=PCIE_5,
        link_name="PCIe 5 x16",
        system="b200_sxm",
    ),
    Device(
        name="b300",
        title="B300 SXM 288 GB",
        memory=275040 * _MIB,
        bandwidth=7.75e12,
        flops=2250e12,
        link=PCIE_5,
        link_name="PCIe 5 x16",
        system="b300_sxm",
    ),
    Device(
        name="l40s",
        title="L40S 48 GB",
        memory=46068 * _MIB,
        bandwidth=864e9,
        flops=362.05e12,
        link=PCIE_4,
        link_name="PCIe 4 x16",
        system="l40s",
    ),
    Device(
        name="rtxpro6000",
        title="RTX PRO 6000 Blackwell Server Edition 96 GB",
        memory=97887 * _MIB,
        bandwidth=1.792e12,
        flops=467.8e12,
        link=PCIE_5,
        link_name="PCIe 5 x16",
        system="rtx_pro_6000_server",
    ),
    Device(
        name="rtx4090",
        title="GeForce RTX 4090 24 GB",
        memory=24564 * _MIB,
        bandwidth=1.008e12,
        flops=165e12,
        link=PCIE_4,
        link_name="PCIe 4 x16",
    ),
    Device(
        name="a10",
        title="A10 24 GB",
        memory=23028 * _MIB,
        bandwidth=600e9,
        flops=125e12,
        link=PCIE_4,
        link_name="PCIe 4 x16",
    ),
    _A6000,
    _group(_A6000, 2),
    _group(_A6000, 4),
    _A5000,
    _A5000_PCIE_3,
    _L20,
    _group(_L20, 2, _L20_PER_LINK),
    _group(_L20, 4, _L20_PER_LINK),
)
"""The devices by name."""
