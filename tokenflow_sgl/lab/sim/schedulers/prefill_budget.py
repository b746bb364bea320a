"""What one prefill step of the simulated SGLang may use up."""

from __future__ import annotations

import math

from tokenflow_sgl.lab.sim.core import SimulatedCore


class PrefillBudget:
    """See SGLang's `PrefillBudget`, and `SWAPrefillBudget` where layers have windows.

    Attributes:
        chunk: New tokens that it may still take.
    """

    def __init__(self, core: SimulatedCore, offset: float, rows: int, chunk: int) -> None:
        self._core = core
        self._memory = core.memory
        self._page = core.options.page_size
        self._offset = offset
        self._immediate = float(rows)
        self._input = core.options.max_prefill_tokens - rows
        self._windows = 0
        self.chunk = chunk - rows

    @property
    def total(self) -> int:
        """Tokens that may still be promised."""
        return math.ceil(self._memory.free - self._offset)

    @property
    def spent(self) -> bool:
        """The step has enough to compute."""
        return self._input <= 0 or self.chunk <= 0

    @property
    def exhausted(self) -> bool:
        """No memory is left to promise."""
        return self.total <= 0 or self._memory.free <= self._immediate

    def fits_windows(self, computed: int, later: int) -> bool:
        """Whether the window pool has places for so many tokens of a prefill, and what follows."""
        pool = self._core.windows
        if pool is None:
            return True
        free = self._core.window_free - self._windows
        return pool.reserve(computed, later, self._core.options.chunked_prefill_size) < free

    def give_back(self, reserved: float) -> None:
        """A running stream was preempted: what was reserved for it is free."""
        self._offset -= reserved

    def reserve(self, tokens: int, later: int) -> None:
        """`tokens` are computed in this step, `later` ones are reserved."""
        if self._core.windows is not None:
            chunk = self._core.options.chunked_prefill_size
            self._windows += self._core.windows.reserve(tokens, later, chunk)
        tokens = self._memory.paged(tokens)
        self._offset += tokens + self._page + later
        self._immediate += tokens + self._page
        self._input -= tokens
        self.chunk -= tokens
