"""Attention in data-parallel ranks on the CPU: what SGLang does there with GPU kernels.

Each rank attends to its own requests, and all ranks compute the rest of a layer together, so that
rows are gathered from all ranks and scattered again. SGLang moves them with Triton and with
operators that are registered for GPUs only; it has plain code for both, which it takes for its own
CPU engine and which is called here.
"""

from typing import Any

import torch


def memcpy(
    dst: torch.Tensor, src: torch.Tensor, dim: int, offset: Any, sz: Any, offset_src: bool
) -> None:
    """Copy ``sz`` rows to row ``offset`` of ``dst``, or from there of ``src``."""
    from sglang.srt.layers.dp_attention import memcpy_cpu

    memcpy_cpu(dst, src, dim, int(offset), int(sz), offset_src)


def all_gather_into_tensor(group: Any, output: torch.Tensor, input: torch.Tensor) -> None:
    """Put the ranks' inputs one behind the other."""
    group._all_gather_into_tensor(output, input)


def reduce_scatter_tensor(group: Any, output: torch.Tensor, input: torch.Tensor) -> None:
    """Add the ranks' inputs up; each rank gets its part of the sum."""
    group._reduce_scatter_tensor(output, input)
