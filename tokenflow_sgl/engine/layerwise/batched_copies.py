"""Copies of many pieces of memory by one call, which the device's copy engine does.

Kernels that copy beside a model's layers make these up to half as long again, and with a call for
each piece small ones take 4 us each (benchmarks/gpu). Nothing but the package `cuda-bindings` is
needed here, so that the benchmarks measure what a server runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenflow_sgl.contract import IntArray

try:
    from cuda.bindings import runtime
except ImportError:  # torch for CPUs comes without it
    runtime = None


class BatchedCopyError(RuntimeError):
    """CUDA refused a batch of copies between device and host."""


def has_batched_copies() -> bool:
    """Whether `cuda-bindings` is installed, and as new as CUDA 12.8, which brought the call."""
    return hasattr(runtime, "cudaMemcpyBatchAsync")


def copy_batch(
    targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: int
) -> None:
    """Copy pieces between pinned host memory and a device, in any order among themselves.

    Args:
        targets: Address of each, one at least.
        sources: Likewise.
        sizes: Bytes of each piece.
        stream: Handle of the stream in whose order they are copied; not the default one, 0.

    Raises:
        BatchedCopyError: CUDA does not take them.
    """
    attributes = runtime.cudaMemcpyAttributes()
    attributes.srcAccessOrder = runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
    count = len(targets)
    # CUDA 12 says after the error which piece it is about; CUDA 13 does not.
    error, *_ = runtime.cudaMemcpyBatchAsync(
        targets, sources, sizes, count, [attributes], [0], 1, stream
    )
    if error != runtime.cudaError_t.cudaSuccess:
        raise BatchedCopyError(f"cudaMemcpyBatchAsync of {count} pieces: {error.name}")


def merged(device: IntArray, host: IntArray, length: int) -> tuple[IntArray, IntArray, IntArray]:
    """Pieces of one length, those that follow each other on both sides made one.

    Args:
        device: Where each begins there, of shape (pieces,), one at least. None overlap.
        host: Likewise.
        length: Of each, in the same unit.

    Returns:
        Where each of the fewer pieces begins on the device and on the host, and its length.
    """
    order = np.argsort(device)
    device, host = device[order], host[order]
    follows = (np.diff(device) == length) & (np.diff(host) == length)
    first = np.concatenate(([0], np.flatnonzero(np.logical_not(follows)) + 1))
    lengths = np.diff(np.append(first, device.size)) * length
    return device[first], host[first], lengths
