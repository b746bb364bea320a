"""What ``tokenflow plan`` computes and shows: the plan, its step, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from tokenflow_sgl.choices import PlacementSolver, Staging
from tokenflow_sgl.placement import (
    PAUSED,
    Batch,
    Layout,
    Machine,
    Plan,
    Terms,
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
from tokenflow_sgl.profiles.profile_table import plain_table

if TYPE_CHECKING:
    from tokenflow_sgl.profiles import DeviceProfile


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan and what it was made from.

    Attributes:
        profile: Device and model.
        tokens: KV tokens of each stream.
        page: Tokens of a block.
        block_bytes: Bytes of a block, in one layer.
        machine: Times, link and memory, in blocks.
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
    terms: Terms
    plan: Plan
    timeline: Timeline | None
    memory_wanted: float | None
    link_wanted: float | None
    one_more: Plan

    @property
    def runs(self) -> list[int]:
        """Streams that run, by index."""
        return [int(stream) for stream in np.flatnonzero(self.plan.layout != PAUSED)]

    def tokens_of(self, blocks: float) -> float:
        """KV tokens, over all layers, that take so many blocks."""
        return blocks * self.page / self.machine.layers


def planned(
    profile: DeviceProfile,
    tokens: Sequence[int],
    *,
    memory: int,
    page: int,
    bandwidth: float | None,
    tbt_slo: float | None,
    ahead: int,
    staging: Staging,
    solver: PlacementSolver,
) -> Planned:
    """Plan, and see what would change it.

    Args:
        profile: Device and model.
        tokens: KV tokens of each stream.
        memory: KV tokens on the device.
        page: Tokens of a block.
        bandwidth: Bytes per second from the host; None: the profile's.
        tbt_slo: Longest step in seconds; None: any.
        ahead: Steps for whose end the plan is made.
        staging: How staging is counted.
        solver: What finds the placement.
    """
    block_bytes = page * profile.kv_bytes_per_token / profile.layers
    rate = (profile.host_to_device.bandwidth if bandwidth is None else bandwidth) / block_bytes

    def machine_for(lengths: Sequence[int]) -> Machine:
        seconds = profile.decode_seconds(len(lengths), sum(lengths) + ahead * len(lengths))
        compute = np.full(profile.layers, seconds / profile.layers)
        return Machine(compute, rate, memory / page * profile.layers, staging)

    terms = Terms(block=page, ahead=ahead)

    def plan_of(lengths: Sequence[int]) -> Plan:
        batch = Batch.of(np.array(lengths), np.inf if tbt_slo is None else tbt_slo)
        layouts = for_batch(len(lengths))(profile.layers)
        backend = None
        if solver is PlacementSolver.milp:
            from tokenflow_sgl.placement.milp import solve_milp

            backend = partial(_milp, solve_milp)
        return plan(batch, machine_for(lengths), terms, layouts=layouts, backend=backend)

    made = plan_of(tokens)
    machine = machine_for(tokens)
    runs = made.layout != PAUSED
    sizes, layout = made.sizes[runs], made.layout[runs]
    timeline, wanted, link = None, None, None
    if runs.any():
        timeline = decode_step(sizes, layout, made.layouts, machine)
    if timeline is not None and timeline.stalled > NO_STALL * machine.computing:
        wanted = memory_without_stalls(sizes, made.layouts, machine)
        link = bandwidth_without_stalls(sizes, made.layouts, machine)
    mean = max(round(sum(tokens) / len(tokens)), 1)
    return Planned(
        profile=profile,
        tokens=tuple(tokens),
        page=page,
        block_bytes=block_bytes,
        machine=machine,
        terms=terms,
        plan=made,
        timeline=timeline,
        memory_wanted=None if wanted is None else wanted * page / profile.layers,
        link_wanted=None if link is None else link * block_bytes,
        one_more=plan_of([*tokens, mean]),
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


def object_of(found: Planned) -> dict[str, Any]:
    """The plan as plain values; streams and layers count from 1."""
    made, timeline = found.plan, found.timeline
    paused = {stream: reason.value for stream, reason in made.paused}
    streams = [
        {
            "tokens": tokens,
            "paused": paused.get(stream),
            "layers_on_host": (
                []
                if stream in paused
                else [int(layer) for layer in made.layouts.choices[made.layout[stream]]]
            ),
        }
        for stream, tokens in enumerate(found.tokens)
    ]
    step: dict[str, Any] | None = None
    if timeline is not None:
        runs = found.runs
        step = {
            "seconds": timeline.seconds,
            "computing_s": found.machine.computing,
            "stalled_s": timeline.stalled,
            "bound_s": float(made.bound),
            "layers": [
                {"start_s": float(start), "stall_s": float(stall)}
                for start, stall in zip(timeline.start, timeline.stall, strict=True)
            ],
            "copies": [
                {
                    "stream": runs[copy.stream] + 1,
                    "layer": copy.layer,
                    "ready_s": copy.ready,
                    "pieces_s": [[piece.begin, piece.end] for piece in copy.pieces],
                }
                for copy in timeline.copies
            ],
        }
    return {
        "device": found.profile.device,
        "model": found.profile.model,
        "layers": found.machine.layers,
        "page_size": found.page,
        "kv_tokens": round(found.tokens_of(found.machine.memory)),
        "link_bytes_per_s": found.machine.bandwidth * found.block_bytes,
        "staging": str(found.machine.staging),
        "ahead": found.terms.ahead,
        "streams": streams,
        "used_kv_tokens": found.tokens_of(float(made.blocks)),
        "step": step,
        "lasts_steps": made.lasts if timeline is not None else 0,
        "without_stalls": {
            "kv_tokens": found.memory_wanted,
            "link_bytes_per_s": found.link_wanted,
        },
        "one_more_stream": {
            "step_s": float(found.one_more.seconds),
            "paused": [stream + 1 for stream, _ in found.one_more.paused],
        },
    }
