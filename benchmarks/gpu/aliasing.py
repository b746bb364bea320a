"""What it costs to alias memory: one place of physical memory mapped to other virtual addresses.

A layer's KV could look contiguous to any attention kernel if the driver mapped its pages anew
(vAttention, arXiv 2405.04437). Here the calls for that are timed, one granule of memory each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from timing import wait

GRANULES = 256
"""Mapped one after the other in each round."""
ROUNDS = 5


def mapped(device: str) -> dict[str, float]:
    """Seconds per granule of each call, and bytes of a granule; nothing on a CPU."""
    if device != "cuda":
        return {}
    from cuda.bindings import driver

    torch.zeros(1, device=device)  # makes the context
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = torch.cuda.current_device()
    access = driver.CUmemAccessDesc()
    access.location = prop.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granule = _checked(driver.cuMemGetAllocationGranularity(prop, least))
    base = int(_checked(driver.cuMemAddressReserve(GRANULES * granule, 0, 0, 0)))
    places = [base + number * granule for number in range(GRANULES)]
    created: list[Any] = []
    calls: dict[str, Callable[[int], object]] = {
        "create": lambda n: created.append(_checked(driver.cuMemCreate(granule, prop, 0))),
        "map": lambda n: driver.cuMemMap(places[n], granule, 0, created[n], 0),
        "set_access": lambda n: driver.cuMemSetAccess(places[n], granule, [access], 1),
        "unmap": lambda n: driver.cuMemUnmap(places[n], granule),
        "release": lambda n: driver.cuMemRelease(created[n]),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        created.clear()
        for name, call in calls.items():
            wait(device)
            began = time.perf_counter()
            results = [call(number) for number in range(GRANULES)]
            taken[name].append((time.perf_counter() - began) / GRANULES)
            for result in results:
                if isinstance(result, tuple):
                    _checked(result)
    _checked(driver.cuMemAddressFree(base, GRANULES * granule))
    return {"granule_bytes": granule, **{f"{name}_s": median(all) for name, all in taken.items()}}


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call of the driver's gave, or its error."""
    error, *rest = result
    if int(error):
        raise RuntimeError(f"CUDA driver: {error.name}")
    return rest[0] if rest else None
