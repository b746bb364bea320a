"""What of a table stays as it is until a stream arrives, leaves or enters another phase.

Most passes come between two such changes: a decode step only adds tokens. So it is looked up once
for all of them, and shared by their states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray, Standing
from tokenflow_sgl.contract.standing import sealed
from tokenflow_sgl.lifecycle.columns import NEUTRAL, SETTLED, StreamColumns, unless
from tokenflow_sgl.lifecycle.phases import Phases, worth_preempting
from tokenflow_sgl.qos import ReaderBank


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """What of the streams stays until one arrives, leaves or changes its phase.

    Attributes:
        version: Which, see `Phases`.
        standing: Of all streams, in order of arrival.
        kind: What the length predictor calls each answer's kind.
        columns: Others that a `Streams` has as they are, by their names.
        running: Slots of the running streams.
        limit, prompt: Of these.
    """

    version: int
    standing: Standing
    kind: IntArray
    columns: dict[str, Any]
    running: IntArray
    limit: IntArray
    prompt: IntArray


def rest(table: StreamColumns, readers: ReaderBank, slots: IntArray) -> BoolArray:
    """Which of these streams rest: their readers have looked away, and nothing waits for them."""
    found: BoolArray = readers.resting.take(slots) & np.isinf(table.awaited_since.take(slots))
    return found


def settle(
    table: StreamColumns,
    readers: ReaderBank,
    phases: Phases,
    order: IntArray,
    *,
    tenants: bool = False,
) -> Settled:
    """Find what stays of the streams until one arrives, leaves or changes its phase.

    Args:
        table: The columns by slot.
        readers: Of all streams.
        phases: Where they stand.
        order: Slots in order of arrival.
        tenants: They are told apart.
    """
    standing = Standing(order, phases.phase.take(order), phases.since.take(order))
    columns: dict[str, Any] = {
        "arrival": readers.arrival.take(order),
        "rate": readers.rate.take(order),
        "resting": rest(table, readers, order),
        **{name: getattr(table, name).take(order) for name in SETTLED},
    }
    if tenants:
        columns["tenant"] = table.tenant.take(order)
        columns["tenant_weight"] = table.tenant_weight.take(order)
    for column in (standing.slot, standing.phase, standing.since, *columns.values()):
        sealed(column)  # several states share it
    for name, neutral in NEUTRAL.items():
        columns[name] = unless(columns[name], neutral)
    if tenants:
        columns["tenant_weight"] = unless(columns["tenant_weight"], 1.0)
    running = order.take(standing.running_index)
    return Settled(
        version=phases.version,
        standing=standing,
        kind=columns.pop("kind"),
        columns=columns,
        running=running,
        limit=table.limit.take(running),
        prompt=table.prompt.take(running),
    )


def preemptible(
    table: StreamColumns, settled: Settled, generated: IntArray, untouchable: Iterable[int]
) -> BoolArray:
    """Which streams run and can leave their batch, but for those in `untouchable` slots."""
    order, running = settled.standing.slot, settled.standing.running_index
    can = np.zeros(len(order), dtype=np.bool_)
    can[running] = table.preemptible.take(settled.running) & worth_preempting(
        generated.take(running), settled.limit
    )
    for slot in untouchable:
        can &= order != slot
    return can


def unwritten(
    table: StreamColumns, settled: Settled, generated: IntArray, *, writes: bool
) -> IntArray:
    """Tokens of running streams whose KV is not on the host, if it can be written there."""
    order, running = settled.standing.slot, settled.standing.running_index
    left = np.zeros(len(order), dtype=np.int64)
    if writes:
        # Of the last token so far the KV is being computed.
        computed = settled.prompt + generated.take(running) - 1
        left[running] = np.maximum(computed - table.on_host.take(settled.running), 0)
    return left
