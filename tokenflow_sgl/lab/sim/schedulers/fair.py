"""Virtual token counter: every client gets the same service.

Y. Sheng et al., "Fairness in Serving Large Language Models" (OSDI'24), algorithm 2: the queue goes
on with the client that was served least, counting a prompt token as one and an output token as
two; nothing is preempted. A client who comes back is lifted to the least counter of those who
queue, or of the last one who did, so that being away saves up nothing. A tenant is a client, or
else a session, or else a request.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray
from tokenflow_sgl.lab.sim.step import Chunk, Step

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class FairScheduler(FcfsScheduler):
    """SGLang's scheduler with its queue in the order of the clients' counters."""

    def __init__(self, core: SimulatedCore) -> None:
        super().__init__(core)
        self.served: FloatArray = np.zeros(int(core.streams.client.max(initial=-1)) + 1)
        self._queued: set[int] = set()
        self._left = 0  # the client whose request left the queue last

    def offered(self) -> list[int]:
        """Waiting requests, the first one of the client that was served least each time."""
        streams = self.core.streams
        if not self.core.waiting:
            self._queued = set()
            return []
        clients = streams.client[self.core.waiting].tolist()
        self._lift(set(clients))
        served = {client: float(self.served[client]) for client in self._queued}
        queues: dict[int, list[int]] = {client: [] for client in self._queued}
        for stream, client in zip(self.core.waiting, clients, strict=True):
            queues[client].append(stream)
        order: list[int] = []
        for _ in clients:
            # Among equals whoever came first.
            client = min(queues, key=lambda client: (served[client], queues[client][0]))
            stream = queues[client].pop(0)
            order.append(stream)
            served[client] += PROMPT_WEIGHT * float(streams.prompt[stream])
            if not queues[client]:
                del queues[client]
        return order

    def taken(self, chunks: list[Chunk], now: float) -> None:
        """Prompts are counted when they are admitted."""
        before = set(self.core.waiting)
        super().taken(chunks, now)
        for chunk in chunks:
            if chunk.stream in before:
                client = self.core.streams.client[chunk.stream]
                self.served[client] += PROMPT_WEIGHT * float(self.core.streams.prompt[chunk.stream])
                self._left = int(client)

    def ran(
        self, step: Step, starts: FloatArray, end: float, context: int, made: IntArray | None = None
    ) -> None:
        """Output tokens are counted when they are there."""
        first = [chunk.stream for chunk in step.chunks if chunk.last]
        decoded = len(starts) if made is None else made.sum(axis=0)
        clients = self.core.streams.client
        np.add.at(self.served, clients[step.decode], OUTPUT_WEIGHT * decoded)
        np.add.at(self.served, clients[first], OUTPUT_WEIGHT * len(starts))

    def _lift(self, clients: set[int]) -> None:
        stayed = clients & self._queued
        least = min(float(self.served[client]) for client in (stayed or {self._left}))
        for client in clients - self._queued:
            self.served[client] = max(self.served[client], least)
        self._queued = clients
