"""Policies that the engine tests switch on by name: forced preemption and writes, and failures."""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import numpy as np
from sglang.srt.runtime_context import get_parallel

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Mode,
    Phase,
    Preempt,
    Prefill,
    Restore,
    State,
    Way,
    When,
    Write,
)
from tokenflow_sgl.policy.working_set import WorkingSetPolicy


class PreemptEvery:
    """Preempts half of the running streams every few passes; resumes them a few later.

    Meanwhile the KV of paused streams is prefetched, one stream after the other.
    Whatever running streams have computed is written to the host at once, page by page: more nodes
    and smaller copies than any real policy would make. The schedule depends on the passes only,
    kept in the memo as a plain counter, so that every rank and every run decides the same.
    """

    every = 4
    rest = 3

    def decide(self, state: State) -> Decision:
        streams = state.streams
        passes = (state.memo if isinstance(state.memo, int) else 0) + 1
        running = np.nonzero(streams.running & streams.preemptible)[0]
        victims: tuple[Preempt, ...] = ()
        if passes % self.every == 0 and len(running):
            start = passes // self.every % len(running)
            order = np.roll(running, -start)[: max(1, len(running) // 2)]
            victims = tuple(Preempt(int(streams.slot[i]), Cause.POLICY) for i in order)
        # Resume on the passes in between, oldest first.
        resting = passes % self.every < self.rest and bool(streams.running.any())
        phases = (Phase.WAITING,) if resting else (Phase.WAITING, Phase.PAUSED)
        ready = np.nonzero(np.isin(streams.phase, phases))[0]
        paused = np.nonzero(streams.paused)[0]
        page = state.memory.page_size
        whole = np.nonzero(streams.unwritten >= page)[0]
        return Decision(
            Mode.WORKING_SET,
            preempt=victims,
            run=tuple(streams.slot[ready].tolist()),
            restore=tuple(
                Restore(slot, when=When.AHEAD) for slot in streams.slot[paused].tolist() if resting
            ),
            write=tuple(
                Write(int(streams.slot[i]), int(streams.unwritten[i]) // page * page) for i in whole
            ),
            memo=passes,
        )


class MakeWay(PreemptEvery):
    """Also pauses all for a prompt that fills more than half of the memory, and runs it alone.

    So what the others have computed leaves the device, whatever they are short of by themselves.
    """

    def decide(self, state: State) -> Decision:
        decision = super().decide(state)
        streams = state.streams
        large = np.nonzero(2 * streams.prompt > state.memory.kv.total)[0]
        if not len(large):
            return decision
        first = int(large[0])
        others = streams.running & streams.preemptible & (streams.slot != streams.slot[first])
        return dataclasses.replace(
            decision,
            preempt=tuple(Preempt(slot, Cause.POLICY) for slot in streams.slot[others].tolist()),
            run=(int(streams.slot[first]),) if streams.waiting[first] else (),
            restore=(),
        )


class PreemptInChunks(PreemptEvery):
    """Also prefetches a page where there is no memory for more, and gives it up to resume others.

    The streams take turns in being the most urgent one, so that several are loaded in part.
    """

    def decide(self, state: State) -> Decision:
        decision = super().decide(state)
        if not decision.restore:
            return decision
        assert isinstance(decision.memo, int)
        streams = state.streams
        slots = np.roll(streams.slot[streams.paused | streams.partly_loaded], -decision.memo)
        page = state.memory.page_size
        return dataclasses.replace(
            decision,
            restore=tuple(Restore(slot, when=When.AHEAD, part=page) for slot in slots.tolist()),
        )


class PreemptOthersOnOneRank(PreemptEvery):
    """Agrees with itself for a while; then rank 1 has the victims in another order."""

    agreed = 60

    def decide(self, state: State) -> Decision:
        decision = super().decide(state)
        assert isinstance(decision.memo, int)
        if decision.memo > self.agreed and get_parallel().tp_rank == 1:
            return dataclasses.replace(decision, preempt=decision.preempt[::-1])
        return decision


class PreemptAndResume(PreemptEvery):
    """Also asks for its victims back in the very pass in which it preempts them."""

    rest = 0

    def decide(self, state: State) -> Decision:
        decision = super().decide(state)
        victims = tuple(p.slot for p in decision.preempt)
        return dataclasses.replace(decision, run=decision.run + victims)


class Fails:
    """Fails on every call: it raises, or returns what is no decision."""

    def __init__(self) -> None:
        bad: tuple[dict[str, Any], ...] = ({"run": None}, {"preempt": (0,)}, {"prefill": 64})
        self._answers = itertools.cycle(
            [None, *(Decision(Mode.WORKING_SET, **fields) for fields in bad)]
        )

    def decide(self, state: State) -> Decision:
        answer = next(self._answers)
        if answer is None:
            raise RuntimeError("this policy always fails")
        return answer


class HoldMarked:
    """Pauses streams read at 7 tokens/s after ten tokens, for good; never starts those at 3.

    Those read at 8 churn: preempted whenever they run, resumed whenever they are paused, so
    that they drain for a third of their time. Requests that do not stream have no rate: of those,
    prompts of the lengths in TOKENFLOW_TEST_HELD are paused, of 3 tokens never started, and of the
    lengths in TOKENFLOW_TEST_CHURNED churn.
    """

    def __init__(self) -> None:
        self._held = _lengths("TOKENFLOW_TEST_HELD")
        self._churned = _lengths("TOKENFLOW_TEST_CHURNED")

    def decide(self, state: State) -> Decision:
        streams = state.streams

        def marked(rate: float, lengths: list[int]) -> np.ndarray:
            unread = ~streams.streaming & np.isin(streams.prompt, lengths)
            return (streams.streaming & (streams.rate == rate)) | unread

        held = marked(7.0, self._held)
        running = streams.running & streams.preemptible
        leaving = (held & (streams.generated >= 10)) | marked(8.0, self._churned)
        victims = np.nonzero(running & leaving)[0]
        others = streams.paused & ~held
        fresh = streams.waiting & ~marked(3.0, [3])
        return Decision(
            Mode.WORKING_SET,
            preempt=tuple(Preempt(int(streams.slot[i]), Cause.POLICY) for i in victims),
            run=tuple(streams.slot[others | fresh].tolist()),
            until=state.now + 1.0,  # an engine that idles meanwhile is what it wants
        )


class ShortPrefills:
    """Decides always, and lets nothing be prefilled in steps of more than 64 tokens."""

    def decide(self, state: State) -> Decision:
        return Decision(
            Mode.WORKING_SET,
            run=tuple(state.streams.slot[state.streams.waiting].tolist()),
            prefill=Prefill(limit=64),
        )


class LoadsAlways(WorkingSetPolicy):
    """The shipped policy, but what the host has is never computed again, however dear a load is."""

    def decide(self, state: State) -> Decision:
        decision = super().decide(state)
        loads = tuple(each for each in decision.restore if each.way is not Way.RECOMPUTE)
        return dataclasses.replace(decision, restore=loads)


def _lengths(variable: str) -> list[int]:
    return [int(length) for length in os.environ.get(variable, "").split(",") if length]
