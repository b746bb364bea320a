"""The same function over many jobs: on this machine's cores, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from tokenflow_sgl.lab.sim.engine_options import SimulationError
from tokenflow_sgl.pip_hints import pip_install

Function = Callable[[Any, Any], Any]
Spread = Callable[[Function, Any, Sequence[Any]], Iterator[Any]]
"""Calls the function with what all jobs share and with each job; results in the jobs' order."""


@contextmanager
def on_cores(workers: int | None = None) -> Iterator[Spread]:
    """Over processes of this machine; None: one per core."""
    # Spawned, not forked: threads of Arrow's are around by now.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count() or 1, mp_context=context) as pool:

        def spread(function: Function, shared: Any, jobs: Sequence[Any]) -> Iterator[Any]:
            return pool.map(function, [shared] * len(jobs), jobs)

        yield spread


@contextmanager
def on_ray(address: str | None = None) -> Iterator[Spread]:
    """Over the cores of a Ray cluster; what jobs share is sent to each machine once.

    Args:
        address: Of the cluster, as Ray takes it; None: the one that RAY_ADDRESS names, or else
            one of this machine alone, for as long as it is needed.

    Raises:
        SimulationError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError:
        raise SimulationError(
            f"Ray is not installed: {pip_install('ray')}, here and on the cluster"
        ) from None
    address = address or os.environ.get("RAY_ADDRESS")
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False)
        except ConnectionError as error:
            raise SimulationError(f"no Ray cluster at {address}: {error}") from None

    def spread(function: Function, shared: Any, jobs: Sequence[Any]) -> Iterator[Any]:
        there, task = ray.put(shared), ray.remote(function)
        for handle in [task.remote(there, job) for job in jobs]:
            yield ray.get(handle)

    try:
        yield spread
    finally:
        if started:
            ray.shutdown()
