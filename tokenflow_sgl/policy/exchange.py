"""Which streams run: the least-slack exchange within device memory.

Candidates are taken in their order, the most urgent first (`candidates`). One that does not fit may
displace running streams (`victims`), and only if the space then really suffices.

A newcomer whose wait is still tolerated displaces others as a paused stream does. What a stream
that thinks may displace is what is behind it in the order of those without text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import Cause, FloatArray, IntArray, Preempt, State
from tokenflow_sgl.contract.needs import Room, needs, steps, together
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy.admission import DemandAnswer
from tokenflow_sgl.policy.candidates import in_line
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.victims import Victims, displaceable

CONTENT = 0.5
"""Share of the band above which a paused stream does not displace anybody."""


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

    # What drains is as good as free: it is released before the plan can be used up.
    leaving = streams.standing.draining_index
    drained = len(leaving)
    running = len(streams.running_index) + drained
    room = Room(memory)
    room.give(together(memory, streams, leaving))
    room.take(steps(memory, state.growth, running, DECODE_TARGET_STEPS))
    rows = memory.max_running - running + drained
    growing = steps(memory, state.growth, 1, DECODE_TARGET_STEPS)
    wanted_by_each = needs(memory, streams, candidates, growing)
    # Those at the head of the line that fit as it is.
    fit = room.take_head(wanted_by_each, rows)
    rows -= fit
    run: list[int] = candidates[:fit].tolist()
    if fit == len(candidates):
        return Exchange(tuple(run), ())

    others, movable = candidates[fit:], displaceable(state, config)
    band = useful_band(state, config, np.concatenate([others, movable]))
    victims = Victims(state, config, movable, band[len(others) :], keys)
    # What is served already, or is not to take memory from others.
    content = (line.ahead[fit:] > CONTENT * band[: len(others)]) | line.held[fit:]

    preempt: list[Preempt] = []
    # Plain lists: one pass over them is several times faster than indexing arrays.
    of_each = zip(others.tolist(), wanted_by_each.behind(fit), content.tolist(), strict=True)
    for place, (index, wanted, is_content) in enumerate(of_each, start=fit):
        if rows < 1 or not room.fits(wanted):
            if is_content and (running or run):
                continue
            candidate = line.candidate(place)
            chosen = victims.displace(room.lacks(wanted), 1 - rows, candidate)
            if chosen is None:
                # A smaller one behind may still fit. The large one stays first in line, and
                # what runs becomes displaceable for it as its buffer grows.
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
