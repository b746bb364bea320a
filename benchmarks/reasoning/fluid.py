"""What is left to win for the time to the first visible token, by a fluid model of the engine.

    python benchmarks/reasoning/fluid.py servegen_deepseek-r1-morning_rates.csv

The engine is a fluid here: it divides its time among streams as it likes, every token costs what it
costs in the fullest step that fits its context, prompts cost the cheapest prefill, and pauses cost
nothing. Readers get their text at their rate before anything else, so none stalls. The rest of
the time goes to the streams without text, in the order of a rule, at no more than `SPEED` tokens
per second each. Some rules know how long each thought is; no server does. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from simulated import DEVICE, HOST, LOADS, MODEL, RATE, SECONDS

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.sim import EngineOptions
from tokenflow_sgl.lab.sim.study.bounds import cheapest_prefill
from tokenflow_sgl.lab.traces import Trace, open_trace

SPEED = {"200k": 80.0, "all": 40.0}
"""Tokens per second of a stream that thinks: about what it gets in the simulation."""
HELD = {"200k": 115.0, "all": 148.0}
"""Seconds after its arrival before which a text may be kept back: half of simulated stock's P99."""
GIVEN_UP = 0.01
"""Share of the requests that a rule for the 99th percentile may serve last."""
STEP = 0.5
"""Seconds at a time."""
BATCHES = (64, 128, 192, 256, 320, 384, 512, 768, 1024, 2048)
"""Rows of the decode steps of which the cheapest counts."""
CONTEXTS: IntArray = np.unique(np.geomspace(16, 65_536, 80).astype(np.int64))
"""Contexts at which a token is priced; linear between them."""


class Fluid:
    """A trace and what it costs; all arrays have shape (n,).

    Args:
        trace: Its requests.
        profile: Of the device.
        kv_tokens: Of the device.

    Attributes:
        arrival: Seconds.
        prompt, answer: Tokens.
        hidden: Tokens up to the first visible one, which it includes.
        prefill: Seconds.
    """

    def __init__(self, trace: Trace, profile: DeviceProfile, kv_tokens: int) -> None:
        def column(name: str) -> FloatArray:
            return np.array([getattr(request, name) for request in trace.requests], np.float64)

        options = EngineOptions(
            max_total_tokens=kv_tokens,
            host_tokens=HOST * kv_tokens,
            chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        )
        self.arrival, self.prompt = column("arrival_s"), column("prompt_tokens")
        self.answer = column("output_tokens")
        self.hidden = np.minimum(column("reasoning_tokens") + 1, self.answer)
        self.prefill = cheapest_prefill(profile, options) * self.prompt
        self._price = np.array(
            [
                min(
                    profile.decode_seconds(rows, rows * context) / rows
                    for rows in {max(min(kv_tokens // context, most), 1) for most in BATCHES}
                )
                for context in CONTEXTS.tolist()
            ]
        )
        between = (self._price[1:] + self._price[:-1]) / 2 * np.diff(CONTEXTS)
        self._whole = np.concatenate([[0.0], np.cumsum(between)])

    def price(self, context: FloatArray) -> FloatArray:
        """Seconds of a token at each context."""
        return np.interp(context, CONTEXTS, self._price)

    def work(self, begin: FloatArray, end: FloatArray) -> FloatArray:
        """Seconds of the tokens from one context to another."""
        ends = np.interp(end, CONTEXTS, self._whole)
        return np.asarray(ends - np.interp(begin, CONTEXTS, self._whole))

    @property
    def until_text(self) -> FloatArray:
        """Seconds that each needs until its first visible token."""
        return self.prefill + self.work(self.prompt, self.prompt + self.hidden)

    def mean_answer(self, generated: FloatArray) -> FloatArray:
        """Mean length of the answers that are longer than this."""
        lengths = np.sort(self.answer)
        sums = np.cumsum(lengths[::-1])[::-1]
        place = np.searchsorted(lengths, generated, side="right").clip(max=len(lengths) - 1)
        return np.asarray(sums[place] / (len(lengths) - place))


Rule = Callable[[Fluid, float, IntArray, FloatArray], FloatArray]
"""Of streams without text at a time, and what each has generated: the least one goes first."""


def oldest(fluid: Fluid, now: float, index: IntArray, generated: FloatArray) -> FloatArray:
    """First come first served."""
    return fluid.arrival[index]


def largest_last(fluid: Fluid, now: float, index: IntArray, generated: FloatArray) -> FloatArray:
    """The same, but those that need most are given up for the percentile."""
    needs = fluid.until_text
    most = np.sort(needs)[-int(GIVEN_UP * len(needs))]
    return np.asarray(fluid.arrival[index] + np.where(needs[index] >= most, 1e6, 0.0))


def shortest(fluid: Fluid, now: float, index: IntArray, generated: FloatArray) -> FloatArray:
    """Shortest remaining work first: the least mean on one machine."""
    return _left(fluid, index, generated, fluid.hidden[index])


def thinking_first(fluid: Fluid, now: float, index: IntArray, generated: FloatArray) -> FloatArray:
    """A thought that has begun goes on; of the others the highest response ratio of the prefill."""
    ratio = (now - fluid.arrival[index]) / fluid.prefill[index]
    return np.where(generated > 0, fluid.arrival[index] - 1e9, -ratio)


def response_ratio(fluid: Fluid, now: float, index: IntArray, generated: FloatArray) -> FloatArray:
    """The highest ratio of the wait to the work that is expected to be left."""
    left = _left(fluid, index, generated, fluid.mean_answer(generated))
    return np.asarray(-(now - fluid.arrival[index]) / left)


def _left(fluid: Fluid, index: IntArray, generated: FloatArray, until: FloatArray) -> FloatArray:
    prompt = fluid.prompt[index]
    work = fluid.work(prompt + generated, prompt + until)
    return np.asarray(work + np.where(generated > 0, 0.0, fluid.prefill[index]))


RULES: dict[str, tuple[str, Rule]] = {
    "oldest first": ("known", oldest),
    "oldest first, the largest 1 % last": ("known", largest_last),
    "shortest first": ("known", shortest),
    "thoughts go on, then response ratio of prefills": ("unknown", thinking_first),
    "response ratio of the work left": ("unknown", response_ratio),
}


def waits(fluid: Fluid, rule: Rule, speed: float, held: float = 0.0) -> FloatArray:
    """Seconds from arrival to first visible token under a rule, shape (n,).

    held: No text is shown sooner, so that its reading does not delay others' thoughts.
    """
    count = len(fluid.arrival)
    unfilled, generated = fluid.prefill.copy(), np.zeros(count)
    begun = np.full(count, np.nan)
    now = 0.0
    while np.isnan(begun).any():
        price = fluid.price(fluid.prompt + generated)
        reads = begun <= now
        wanted = np.where(reads, np.minimum(fluid.answer - generated, RATE * STEP), 0.0)
        cost = float((wanted * price).sum())
        generated += wanted * min(STEP / cost, 1.0) if cost else 0.0
        left = STEP - min(cost, STEP)
        index = np.nonzero((fluid.arrival <= now) & np.isnan(begun))[0]
        order = np.argsort(rule(fluid, now, index, generated[index]), kind="stable")
        for stream in index[order].tolist():
            spent = min(unfilled[stream], left)
            unfilled[stream] -= spent
            left -= spent
            tokens = min(
                fluid.hidden[stream] - generated[stream], speed * STEP, left / price[stream]
            )
            generated[stream] += tokens
            left -= tokens * price[stream]
            if generated[stream] >= fluid.hidden[stream] - 1e-9:
                begun[stream] = max(now + STEP, fluid.arrival[stream] + held)
            if left <= 1e-9:
                break
        now += STEP
    return np.asarray(begun - fluid.arrival)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rates", type=Path, metavar="FILE", help="ServeGen's rates; lengths beside")
    parser.add_argument("--load", choices=LOADS, action="append", help="default: all")
    given = parser.parse_args()
    profile = load_profile(DEVICE, MODEL)
    for name in given.load or LOADS:
        start, kv_tokens = LOADS[name]
        trace = open_trace(f"servegen:{given.rates}?start={start:g}&duration={SECONDS:g}")
        fluid = Fluid(trace, profile, kv_tokens)
        print(f"\n{name}\n\n| lengths | order | mean TTFVT | P90 | P99 |")
        print("| --- | --- | ---: | ---: | ---: |")
        runs = [(lengths, title, rule, 0.0) for title, (lengths, rule) in RULES.items()]
        runs.append(("known", "the second, all text kept back", largest_last, HELD[name]))
        for lengths, title, rule, held in runs:
            found = waits(fluid, rule, SPEED[name], held)
            nine, most = np.percentile(found, [90, 99])
            cells = f"{found.mean():.1f} s | {nine:.0f} s | {most:.0f} s"
            print(f"| {lengths} | {title} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
