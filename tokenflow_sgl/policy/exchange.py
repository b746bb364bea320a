"""Which streams run: the least-slack exchange within device memory.

Candidates are taken in their order, the most urgent first (`candidates`). One that does not fit may
displace running streams (`victims`), and only if the space then really suffices. Where streams
begin alike, what one takes or frees depends on who else runs by then.

A newcomer whose wait is still tolerated displaces others as a paused stream does. What a stream
that thinks may displace is what is behind it in the order of those without text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import Cause, FloatArray, IntArray, Preempt, State
from tokenflow_sgl.contract.beginnings import HeldBeginnings
from tokenflow_sgl.contract.needs import Room, needs, steps, together
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy.admission import DemandAnswer
from tokenflow_sgl.policy.candidates import in_line
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.victims import Victims, displaceable

CONTENT = 0.5
"""Share of the band above which a paused stream does not displace anybody."""
YIELDS = 1.0
"""Seconds of leeway above which a stream takes no memory, where some begin alike, while a reader
stalls who lacks it: most often for a whole beginning, and smaller ones would take what is freed."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """run: indices to start or resume, most urgent first. preempt: what makes room."""

    run: tuple[int, ...]
    preempt: tuple[Preempt, ...]


def useful_band(state: State, config: WorkingSetConfig, index: IntArray) -> FloatArray:
    """Theta of the streams at `index`: seconds of unread output that still count at full value."""
    length, rate = state.streams.read_length_of(index), state.streams.rate.take(index)
    return np.maximum(config.band * length / rate, config.band_seconds)


def exchange(
    state: State, config: WorkingSetConfig, admission: DemandAnswer, queue: FloatArray | None = None
) -> Exchange:
    """Plan which streams run next.

    Args:
        state: As it is.
        config: Parameters of the policy.
        admission: What joined in this very pass, and which streams that think displace no other.
        queue: Key by which streams without text are sorted, shape (n,); None: they all have the
            same. Among equal ones the order of arrival counts.
    """
    streams, memory = state.streams, state.memory
    slot = streams.slot
    keys = np.zeros(len(streams)) if queue is None else queue
    line = in_line(state, admission, keys)
    candidates = line.indices
    if not len(candidates):
        return Exchange((), ())

    room, rows = _left(state)
    running = len(streams.running_index) + len(streams.standing.draining_index)
    growing = steps(memory, state.growth, 1, DECODE_TARGET_STEPS)
    wanted_by_each = needs(memory, streams, candidates, growing)
    held = _held(state)
    # Those at the head of the line that fit as it is; not where each changes what others need.
    fit = room.take_head(wanted_by_each, rows) if held is None else 0
    rows -= fit
    run: list[int] = candidates[:fit].tolist()
    if fit == len(candidates):
        return Exchange(tuple(run), ())

    others, movable = candidates[fit:], displaceable(state, config)
    band = useful_band(state, config, np.concatenate([others, movable]))
    victims = Victims(state, config, movable, band[len(others) :], keys, held)
    # What is served already, or is not to take memory from others.
    content = (line.ahead[fit:] > CONTENT * band[: len(others)]) | line.held[fit:]

    can_wait = ~line.textless[fit:] & (line.ahead[fit:] > YIELDS)
    preempt: list[Preempt] = []
    stalls = False
    # Plain lists: one pass over them is several times faster than indexing arrays.
    columns = (others.tolist(), wanted_by_each.behind(fit), content.tolist(), can_wait.tolist())
    for place, (index, alone, is_content, waits) in enumerate(zip(*columns, strict=True), fit):
        if stalls and waits:
            continue
        wanted = alone if held is None else (held.take(index) + growing[0], alone[1])
        if rows < 1 or not room.fits(wanted):
            candidate, chosen = line.candidate(place), None
            if not (is_content and (running or run)):
                chosen = victims.displace(room.lacks(wanted), 1 - rows, candidate)
            if chosen is None:
                # A smaller one behind may still fit. The large one stays first in line, and
                # what runs becomes displaceable for it as its buffer grows.
                if held is not None:
                    held.give(index)
                    stalls |= candidate.reads and candidate.ahead <= 0.0
                continue
            cause = Cause.EXCHANGE if candidate.reads else Cause.NEWCOMER
            for victim, freed in chosen:
                preempt.append(Preempt(slot.item(victim), cause))
                room.give(freed)
                rows += 1
        room.take(wanted)
        rows -= 1
        run.append(index)
    if not run and not running:
        # Nothing runs and nothing fits beside the reserve: the most urgent one goes alone.
        run.append(candidates.item(0))
    return Exchange(tuple(run), tuple(preempt))


def _left(state: State) -> tuple[Room, int]:
    """Memory and rows for those to come, beside what the next steps of those that run need."""
    streams, memory = state.streams, state.memory
    # What drains is as good as free: it is released before the plan can be used up.
    leaving = streams.standing.draining_index
    running = len(streams.running_index)
    room = Room(memory)
    room.give(together(memory, streams, leaving))
    room.take(steps(memory, state.growth, running + len(leaving), DECODE_TARGET_STEPS))
    return room, memory.max_running - running


def _held(state: State) -> HeldBeginnings | None:
    """Who holds which beginning once those have left that drain; None: no two begin alike."""
    streams = state.streams
    if streams.beginnings is None:
        return None
    return HeldBeginnings(streams.beginnings, streams.length, streams.holding & streams.running)
