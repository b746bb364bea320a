"""Sends an emulated server a small request once per second: does its HTTP process keep up?

An emulated device computes nothing, so that the CPU may become the bottleneck that the device would
be. Its late steps show that for the scheduler; tokens that wait in the HTTP process only show here.
On real servers that waiting is part of what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array

import aiohttp

from tokenflow_sgl.lab.replay.target import Target, open_session

_EVERY_S = 1.0


class HttpProbe:
    """Probes a server for as long as `run` is not cancelled.

    Attributes:
        lag_s: How long each answer took, wall-clock seconds.
    """

    def __init__(self, target: Target) -> None:
        self.lag_s = array("d")
        self._target = target

    async def run(self) -> None:
        """Probe, if the server emulates a device."""
        if not self._target.device:
            return
        async with open_session(self._target) as session:
            while True:
                await asyncio.sleep(_EVERY_S)
                began = time.monotonic()
                # A server that is gone is noticed by the streams that wait for its answers.
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    # Answered by the HTTP process itself, without the scheduler.
                    async with session.get(f"{self._target.url}/model_info") as response:
                        await response.read()
                    self.lag_s.append(time.monotonic() - began)
