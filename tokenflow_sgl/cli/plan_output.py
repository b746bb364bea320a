"""What ``tokenflow plan`` computes and shows: the plan, its step, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from tokenflow_sgl.choices import PlacementSolver
from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.lab.profiles.profile_table import plain_table
from tokenflow_sgl.placement import (
    PAUSED,
    Batch,
    Layout,
    Machine,
    PlacementPlan,
    PlacementTerms,
    Timeline,
    decode_step,
    for_batch,
    plan,
)
from tokenflow_sgl.placement.changes import (
    NO_STALL,
    bandwidth_without_stalls,
    memory_without_stalls,
)

if TYPE_CHECKING:
    from tokenflow_sgl.cli.plan_placement import PlanOptions
    from tokenflow_sgl.lab.profiles import DeviceProfile


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan and what it was made from.

    Attributes:
        profile: Device and model.
        tokens: KV tokens of each stream.
        page: Tokens of a block.
        block_bytes: Bytes of a block, in one layer.
        machine: Times of the streams that run, link and memory, in blocks.
        tbt_slo: Longest step that was asked for, seconds; None: any.
        terms: What else decided.
        plan: The plan.
        timeline: Its step, of the streams that run; None: none does.
        memory_wanted: KV tokens with which the streams that run would not stall; None: they do not.
        link_wanted: Bytes per second of a link with which they would not; None: they do not, or no
            link is fast enough.
        one_more: The plan with one more stream of mean length.
    """

    profile: DeviceProfile
    tokens: tuple[int, ...]
    page: int
    block_bytes: float
    machine: Machine
    tbt_slo: float | None
    terms: PlacementTerms
    plan: PlacementPlan
    timeline: Timeline | None
    memory_wanted: float | None
    link_wanted: float | None
    one_more: PlacementPlan

    @property
    def runs(self) -> list[int]:
        """Streams that run, by index."""
        return [int(stream) for stream in np.flatnonzero(self.plan.layout != PAUSED)]

    @property
    def late(self) -> bool:
        """Whether the step is longer than what was asked for: no stream keeps that alone."""
        return self.tbt_slo is not None and self.plan.seconds > self.tbt_slo

    def tokens_of(self, blocks: float) -> float:
        """KV tokens, over all layers, that take so many blocks."""
        return blocks * self.page / self.machine.layers


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """What a device has for KV.

    Attributes:
        tokens: KV tokens that it holds.
        page: Tokens of a block.
        link: Bytes per second from the host.
    """

    tokens: int
    page: int
    link: float


def planned(
    profile: DeviceProfile, tokens: Sequence[int], memory: PlanMemory, rules: PlanOptions
) -> Planned:
    """Plan, and see what would change it.

    Args:
        profile: Device and model.
        tokens: KV tokens of each stream.
        memory: What the device has for them.
        rules: What decides beside that.
    """
    page, ahead, tbt_slo = memory.page, rules.ahead, rules.tbt_slo
    block_bytes = page * profile.kv_bytes_per_token / profile.layers
    rate = memory.link / block_bytes

    def machine_for(lengths: IntArray) -> Machine:
        seconds = profile.decode_seconds(lengths.size, int((lengths + ahead).sum()))
        compute = np.full(profile.layers, seconds / profile.layers)
        return Machine(compute, rate, memory.tokens / page * profile.layers, rules.staging)

    terms = PlacementTerms(block=page, ahead=ahead)

    def plan_of(lengths: IntArray) -> PlacementPlan:
        batch = Batch.of(lengths, np.inf if tbt_slo is None else tbt_slo)
        layouts = for_batch(lengths.size)(profile.layers)
        backend = None
        if rules.solver is PlacementSolver.milp:
            from tokenflow_sgl.placement.milp import solve_milp

            backend = partial(_milp, solve_milp)
        return plan(
            batch,
            lambda runs: machine_for(lengths[runs]),
            terms,
            layouts=layouts,
            backend=backend,
        )

    streams = np.array(tokens)
    made = plan_of(streams)
    runs = made.layout != PAUSED
    machine = machine_for(streams[runs])
    sizes, layout = made.sizes[runs], made.layout[runs]
    timeline, wanted, link = None, None, None
    if runs.any():
        timeline = decode_step(sizes, layout, made.layouts, machine)
    if timeline is not None and timeline.stalled > NO_STALL * machine.computing:
        wanted = memory_without_stalls(sizes, made.layouts, machine)
        link = bandwidth_without_stalls(sizes, made.layouts, machine)
    mean = max(round(float(streams.mean())), 1)
    return Planned(
        profile=profile,
        tokens=tuple(tokens),
        page=page,
        block_bytes=block_bytes,
        machine=machine,
        tbt_slo=tbt_slo,
        terms=terms,
        plan=made,
        timeline=timeline,
        memory_wanted=None if wanted is None else wanted * page / profile.layers,
        link_wanted=None if link is None else link * block_bytes,
        one_more=plan_of(np.append(streams, mean)),
    )


def _milp(solve_milp: Any, sizes: Any, layouts: Any, machine: Any, installed: Any) -> Any:
    return solve_milp(sizes, layouts, machine, installed=installed)


def stream_table(found: Planned) -> Table:
    """A row for each stream."""
    heads = ("stream", "tokens", "layers on the host", "which", "on the device", "per step")
    table = plain_table(*heads, right=(0, 1, 2, 4, 5))
    table.title = f"{found.profile.model} on {found.profile.device}"
    paused = dict(found.plan.paused)
    for stream, tokens in enumerate(found.tokens):
        cells = [str(stream + 1), f"{tokens:,}"]
        if stream in paused:
            table.add_row(*cells, "paused", f"for {paused[stream].value}", "0", "")
            continue
        layout = found.plan.layouts.choices[found.plan.layout[stream]]
        layers, size = found.machine.layers, float(found.plan.sizes[stream])
        on_device = found.tokens_of(size * (layers - len(layout)))
        copied = size * len(layout) * found.block_bytes
        table.add_row(
            *cells,
            f"{len(layout)} of {layers}",
            named(layout),
            f"{on_device:,.0f} tokens",
            f"{copied / 1e6:,.0f} MB" if layout else "",
        )
    return table


def named(layout: Layout) -> str:
    """The layers in words: all but few are a distance and the first one."""
    if len(layout) < 4:
        return ", ".join(map(str, layout))
    gaps = {after - before for before, after in pairwise(layout)}
    if len(gaps) > 1:
        return ", ".join(map(str, layout))
    (gap,) = gaps
    ordinal = {2: "2nd", 3: "3rd"}.get(gap, f"{gap}th")
    return "all" if gap == 1 else f"every {ordinal} from {layout[0]}"


def summary(found: Planned) -> Iterator[str]:
    """Sentences on the step, the memory, and how long the plan lasts."""
    if found.timeline is None:
        return
    step, bound = found.timeline.seconds, found.plan.bound
    yield (
        f"A decode step takes {1e3 * step:.1f} ms: {1e3 * found.machine.computing:.1f} ms of "
        f"computing and {1e3 * found.timeline.stalled:.1f} ms of stalls. No placement of these "
        f"choices takes less than {1e3 * bound:.1f} ms."
    )
    used, total = (found.tokens_of(blocks) for blocks in (found.plan.blocks, found.machine.memory))
    if found.tbt_slo is not None and found.late:
        yield (
            f"That is longer than {1e3 * found.tbt_slo:.1f} ms, which no stream keeps even alone: "
            "none is paused for it."
        )
    yield f"Memory: {used:,.0f} of {total:,.0f} KV tokens, copies' buffers included."


def changes(found: Planned) -> Iterator[str]:
    """Sentences on what would change the plan."""
    if found.timeline is None:
        return
    lasts, window = found.plan.lasts, found.terms.window
    yield (
        f"It lasts for {lasts} steps"
        + (" and more." if lasts == window else ", then KV has grown too much for it.")
    )
    if found.memory_wanted is not None:
        yield f"Without stalls: with about {found.memory_wanted:,.0f} KV tokens of memory."
    if found.link_wanted is not None:
        yield f"Without stalls: with a link of about {found.link_wanted / 1e9:.3g} GB/s."
    more = found.one_more
    if more.paused == found.plan.paused:
        yield (
            f"With one more stream of mean length a step takes {1e3 * more.seconds:.1f} ms, and "
            "no other stream is paused."
        )
    else:
        names = ", ".join(str(stream + 1) for stream, _ in more.paused)
        yield f"With one more stream of mean length these are paused: {names or 'none'}."
