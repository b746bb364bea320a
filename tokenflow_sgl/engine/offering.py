"""Which requests SGLang's admission gets to see in this pass, and in which order."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.tracking import StreamTable
from tokenflow_sgl.policy import Decision, Mode


def offer(
    decision: Decision,
    table: StreamTable[Any],
    *,
    waiting: list[Any],
    paused: list[Any],
    busy: bool,
) -> list[Any]:
    """Requests to offer, in their order.

    waiting: SGLang's queue. paused: our paused streams that are not aborted. busy: something
    runs or is about to. Requests that the table does not know (health checks, rejected ones)
    go first: they are not the policy's business.
    """
    if decision.mode is not Mode.WORKING_SET:
        return _all(table, waiting, paused)
    eligible = {*waiting, *paused}
    chosen = [table.request(slot) for slot in decision.run]
    offered = [
        *(req for req in waiting if req not in table),
        *(req for req in chosen if req in eligible),
    ]
    if not offered and not busy and decision.until is None:
        # A policy that forgets all streams must not idle the engine; one that says until when may.
        return _all(table, waiting, paused)
    return offered


def _all(table: StreamTable[Any], waiting: list[Any], paused: list[Any]) -> list[Any]:
    """In order of arrival: who is paused came before who still waits."""
    return [*sorted(paused, key=table.rank), *waiting]
