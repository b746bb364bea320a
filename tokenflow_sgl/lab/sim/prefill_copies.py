"""Copies to the host of what prefills have computed, and when HiCache starts them.

SGLang has it copied when it has the prefill's result. By then the next step has been launched, and
the copy waits for that one, too, as all copies wait for the step under way.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.lab.sim.kv_memory import KVMemory, Store


class PrefillCopies:
    """Copies of prefills to the host, whose tokens the scheduler counts as copied at once.

    Args:
        memory: Of the engine.
    """

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._fresh: list[tuple[int, int]] = []
        self._under_way: list[tuple[int, int]] = []

    def add(self, stream: int, length: int) -> None:
        """The step that was executed last has computed all `length` tokens of a stream."""
        rows, held = np.array([stream]), np.array([length])
        tokens = int(self._memory.unwritten(rows, held)[0])
        host = self._memory.host
        if tokens and host.keep(stream, int(host.copied[stream]) + tokens):
            self._fresh.append((stream, tokens))

    def start(self, store: Store, *, at_once: bool) -> None:
        """A plan begins: copy what SGLang has the result of by now.

        at_once: It has all results, because nothing runs or each one is awaited.
        """
        due, self._under_way, self._fresh = self._under_way, self._fresh, []
        if at_once:
            due, self._under_way = due + self._under_way, []
        for stream, tokens in due:
            self._memory.arrives(stream, store(tokens))

    def __bool__(self) -> bool:
        return bool(self._fresh) or bool(self._under_way)
