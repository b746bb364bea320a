"""The controlled workloads of the TokenFlow paper (7.3, Table 1) by name.

Table 1 gives burst sizes and Poisson rates, 7.3 the mean lengths: 512 (S) or 1024 (L) tokens of
input, 2048 (L) of output, twice that on the H200. The paper leaves open, and this fixes: the normal
distributions' spread and limits (`NormalLengths`), the length of a Poisson run (120 s), the readers
(20 tokens/s) and the KV cache of Llama3-8B (35,000 tokens on the RTX 4090, 200,000 on the H200,
which is about its mem-frac 0.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenflow_sgl.lab.traces.generators.arrivals import Arrivals, BurstArrivals, PoissonArrivals
from tokenflow_sgl.lab.traces.generators.generate import TraceConfig, make_trace
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.generators.request_lengths import NormalLengths, SeparateLengths
from tokenflow_sgl.lab.traces.request import Trace, TraceError

POISSON_S = 120.0
"""Seconds of a Poisson workload."""
READERS = RateMix((20.0,))
"""Readers of all workloads, tokens per second."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A column and row of Table 1, and what it is to be served on.

    Attributes:
        name: As in `h200-a`.
        device: Name of the device.
        model: Name of the model.
        kv_tokens: Tokens that the device's KV cache holds.
        input_mean: Mean input length, tokens.
        output_mean: Mean output length, tokens.
        burst: Requests that arrive at once; None: a Poisson workload.
        poisson_rate: Requests per second; None: a burst.
    """

    name: str
    device: str
    model: str
    kv_tokens: int
    input_mean: int
    output_mean: int
    burst: int | None = None
    poisson_rate: float | None = None

    def trace(
        self,
        seed: int = 0,
        scale: float = 1.0,
        duration_s: float | None = None,
        rates: RateMix = READERS,
    ) -> Trace:
        """Draw the workload's trace.

        Args:
            seed: Seed of everything that is drawn.
            scale: Part of the workload, above 0: of a burst's requests, of a Poisson run's seconds.
            duration_s: Seconds of a Poisson run before scaling; None: `POISSON_S`.
            rates: The readers.

        Raises:
            TraceError: `scale` or the duration is out of range, or a burst is given a duration.
        """
        if not 0 < scale < float("inf"):
            raise TraceError(f"scale is {scale!r}; allowed is a number above 0")
        if duration_s is not None and self.burst is not None:
            raise TraceError(f"duration is {duration_s!r}, but {self.name} is one burst")
        arrivals: Arrivals
        requests: int | None = None
        if self.burst is not None:
            arrivals, duration_s = BurstArrivals(), None
            requests = max(1, round(self.burst * scale))
            shape = f"burst of {requests}"
        else:
            assert self.poisson_rate is not None
            arrivals = PoissonArrivals(self.poisson_rate)
            duration_s = (POISSON_S if duration_s is None else duration_s) * scale
            shape = f"Poisson arrivals, {self.poisson_rate:g}/s for {duration_s:g} s"
        scaled = "" if scale == 1 else f", scaled to {scale:g}"
        return make_trace(
            TraceConfig(
                self.name,
                arrivals,
                SeparateLengths(NormalLengths(self.input_mean), NormalLengths(self.output_mean)),
                requests=requests,
                duration_s=duration_s,
                rates=rates,
                seed=seed,
                note=f"TokenFlow Table 1, {self.name}{scaled}: {shape}, mean lengths "
                f"{self.input_mean} in and {self.output_mean} out, readers of {rates} tokens/s.",
            )
        )


def _rtx4090(
    letter: str, input_mean: int, *, burst: int | None = None, poisson_rate: float | None = None
) -> Workload:
    return Workload(
        f"4090-{letter}", "rtx4090", "llama3-8b", 35_000, input_mean, 2048, burst, poisson_rate
    )


def _h200(
    letter: str, input_mean: int, *, burst: int | None = None, poisson_rate: float | None = None
) -> Workload:
    return Workload(
        f"h200-{letter}", "h200", "llama3-8b", 200_000, input_mean, 4096, burst, poisson_rate
    )


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        _rtx4090("a", 512, burst=60),
        _rtx4090("b", 1024, burst=80),
        _rtx4090("c", 512, poisson_rate=2.0),
        _rtx4090("d", 512, poisson_rate=4.0),
        _h200("a", 512, burst=400),
        _h200("b", 1024, burst=200),
        _h200("c", 512, poisson_rate=5.0),
        _h200("d", 512, poisson_rate=10.0),
    )
}
"""All workloads by name."""
