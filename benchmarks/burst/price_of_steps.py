"""What the engine's time goes to beyond the cheapest schedule, in seconds by kind of step.

    python benchmarks/burst/price_of_steps.py
    python benchmarks/burst/price_of_steps.py h200-b 4090-a --unknown

Simulates tokenflow with known lengths, with the memory of the burst benchmark (`paper`) and with
the device's own (`own`). All seconds until the last reader has its first token are divided: what
the same prompts and tokens cost the no-stall schedule, and what is beyond that. `over` is the
second over the first. Takes about a minute, needs no server.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple, dataclass, field, fields
from typing import Any
from unittest.mock import patch

import numpy as np
from devices import simulated_device
from served import machine
from suite import LOADS

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.policed import PolicedScheduler
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray
from tokenflow_sgl.lab.sim.step import Step
from tokenflow_sgl.lab.sim.study.asked import Asked
from tokenflow_sgl.lab.sim.study.bounds import cheapest_prefill, decode_plane
from tokenflow_sgl.lab.traces import Trace, open_trace

MEMORIES = ("paper", "own")


@dataclass(slots=True)
class Seconds:
    """Engine seconds by what they went to; the first two are what the no-stall schedule pays.

    Attributes:
        tokens, prompts: The tokens that were decoded and the prompts, at their cheapest.
        partial: Steps that only decode, beyond their tokens: they read less than the memory holds.
        rows: The same of the rows in steps with chunks.
        chunks: Steps with chunks beyond their rows and prompts.
        tails: What tokens of paused streams that were computed again added to their steps.
        copies: Steps that waited for KV from the host, or for room that a copy frees.
        idle: No step ran.
    """

    tokens: float = 0.0
    prompts: float = 0.0
    partial: float = 0.0
    rows: float = 0.0
    chunks: float = 0.0
    tails: float = 0.0
    copies: float = 0.0
    idle: float = 0.0


KINDS = [each.name for each in fields(Seconds)]


@dataclass(slots=True)
class Tally:
    """Divides the time of the steps of one run.

    Args:
        trace: What is served.
        profile, options: The device.

    Attributes:
        ends, seconds: When each step ended, and what its seconds went to.
    """

    trace: Trace
    profile: DeviceProfile
    options: EngineOptions
    ends: list[float] = field(default_factory=list)
    seconds: list[tuple[float, ...]] = field(default_factory=list)
    _plane: tuple[float, float, float] = field(init=False)
    _per_prompt: float = field(init=False)

    def __post_init__(self) -> None:
        asked = Asked.of(self.trace)
        self._plane = decode_plane(self.profile.decode, self.options.max_total_tokens, asked)
        self._per_prompt = cheapest_prefill(self.profile, self.options)

    def note(
        self, core: SimulatedCore, step: Step, starts: FloatArray, end: float, context: int
    ) -> None:
        """A step ran, once or several times; `core` is as it was before, but for its memory."""
        found, start, count = Seconds(), float(starts[0]), len(starts)
        waited = start - (self.ends[-1] if self.ends else 0.0)
        if start == core.room_at:
            found.copies = waited
        else:
            found.idle = waited
        rows = len(step.decode)
        read = int(core.length(step.decode).sum()) + rows if rows else 0
        found.tokens = self._cheapest(rows * count, read * count + rows * count * (count - 1) // 2)
        if step.chunks:
            self._mixed(core, step, end - start, context, found)
        else:
            found.partial = end - start - found.tokens
        self.ends.append(end)
        self.seconds.append(astuple(found))

    def until(self, moment: float) -> FloatArray:
        """The sums of all steps that had ended by then, by `KINDS`."""
        ended = np.array(self.ends) <= moment
        return np.asarray(np.array(self.seconds)[ended].sum(axis=0))

    def _cheapest(self, tokens: int, context: int) -> float:
        per_unshared, per_row, per_token = self._plane
        return per_row * tokens + (per_unshared + per_token) * context

    def _mixed(
        self, core: SimulatedCore, step: Step, seconds: float, context: int, found: Seconds
    ) -> None:
        """Divide the time of a step with chunks."""
        profile, begun = self.profile, core.streams.generated
        again = [chunk for chunk in step.chunks if begun[chunk.stream]]
        new = [chunk for chunk in step.chunks if not begun[chunk.stream]]
        # The last token of a stream that is resumed gives it the next one, as that of a row does.
        held = sum(chunk.prefix + chunk.tokens for chunk in again)
        rows, read = len(step.rows) + len(again), context + held
        found.tokens += self._cheapest(len(again), held)
        fresh, tail = sum(one.tokens for one in new), sum(one.tokens - 1 for one in again)

        def of(tokens: int) -> float:
            work = sum(attention_work(one.tokens, one.prefix) for one in step.chunks)
            return profile.mixed_seconds(tokens, work, rows, read) if tokens else alone

        alone = profile.decode_seconds(rows, read)
        computed = seconds
        if any(chunk.loaded for chunk in step.chunks):
            computed = min(of(fresh + tail), seconds)
        found.copies += seconds - computed
        without = min(of(fresh), computed) if tail else computed
        found.tails = computed - without
        found.prompts = self._per_prompt * fresh
        found.rows = alone - found.tokens
        found.chunks = without - alone - found.prompts


def tallied(
    spec: str, profile: DeviceProfile, options: EngineOptions, *, known_lengths: bool
) -> tuple[FloatArray, float, float]:
    """Seconds by kind until the last first token, when that came, and the mean TTFT."""
    trace = open_trace(spec)
    tally, ran = Tally(trace, profile, options), PolicedScheduler.ran

    def noted(self: PolicedScheduler, step: Step, starts: FloatArray, *more: Any) -> None:
        tally.note(self.core, step, starts, *more[:2])
        ran(self, step, starts, *more)

    with patch.object(PolicedScheduler, "ran", noted):
        run = simulate(trace, profile, options, known_lengths=known_lengths).run
    owner, time = (run.tokens[name].to_numpy() for name in ("request", "time_s"))
    _, begin = np.unique(owner, return_index=True)
    last = float(time[begin].max())
    return tally.until(last), last, figures(run).latency.ttft.mean


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["h200-a"], help="workloads")
    parser.add_argument("--unknown", action="store_true", help="no lengths are known")
    given = parser.parse_args()
    heads = ["workload", "memory", *KINDS, "all, s", "over", "TTFT"]
    print("| " + " | ".join(heads) + " |\n| --- | --- |" + " ---: |" * (len(heads) - 2))
    for name in given.names:
        load = LOADS[name]
        for memory in MEMORIES:
            paper = memory == "paper"
            profile, options = (
                simulated_device(load.device, load.kv_tokens)
                if paper
                else machine(load.device, load.model)
            )
            known = not given.unknown
            parts, last, ttft = tallied(load.trace, profile, options, known_lengths=known)
            least = float(parts[:2].sum())
            cells = [f"{part:.1f}" for part in parts.tolist()]
            cells += [f"{last:.0f}", f"{float(parts.sum()) / least - 1.0:.1%}", f"{ttft:.1f}"]
            print("| " + " | ".join([f"`{name}`", memory, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
