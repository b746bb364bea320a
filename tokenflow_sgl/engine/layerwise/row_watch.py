"""Which streams have ended since the last step, by SGLang's table of requests."""

from __future__ import annotations

from typing import Any


class RowWatch:
    """Remembers which stream was in each row.

    Args:
        pool: SGLang's ReqToTokenPool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._seen: dict[int, int] = {}  # by row: how often it had been given out

    def ended(self, rows: list[int]) -> list[int]:
        """Rows of streams that were in a step before, and have given their rows back.

        A row may be another stream's by now.

        Args:
            rows: Of the step that begins; from now on these are watched, too.
        """
        free = set(self._pool.free_slots)
        generation = self._pool.req_generation
        gone = [
            row for row, then in self._seen.items() if row in free or int(generation[row]) != then
        ]
        for row in gone:
            del self._seen[row]
        self._seen.update((row, int(generation[row])) for row in rows)
        return gone
