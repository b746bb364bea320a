"""Every request of a run as parallel arrays, and the reader of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.lab.traces import TraceRequest
from tokenflow_sgl.lifecycle import Phases
from tokenflow_sgl.lifecycle.columns import shown_priorities
from tokenflow_sgl.qos.classes import BY_DEADLINE, OWN_RATE, SHIPPED_CLASSES, QosClass, QosClasses

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DEFAULT_RATE = SHIPPED_CLASSES.default.rate
"""Tokens per second of a reader whose rate the trace does not say, as of a request to a server."""
UNTOLD = -1
"""Kind of a stream that no predictor has seen yet."""
ROUNDING = 1e-12
"""Share of a time by which sums of it and of pauses are off, at the very most."""
LEAST = -(1 << 62)
"""Priority of a request without one."""


def _expected(request: TraceRequest, classes: QosClasses) -> QosClass:
    """What a server of these classes expects of the request's stream."""
    if request.qos_class is not None:
        return classes.known[request.qos_class].paced
    if request.rate is not None:
        return QosClass(OWN_RATE, request.rate)
    return (classes.default if request.deadline_s is None else BY_DEADLINE).paced


def _tenants(
    requests: Sequence[TraceRequest], classes: QosClasses
) -> tuple[IntArray | None, FloatArray]:
    """Number of each request's tenant, None where none has one, and the tenants' weights."""
    names = [request.tenant or "" for request in requests]
    weight = np.array([classes.tenant(name).weight for name in names])
    if not any(names):
        return None, weight
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], dtype=np.int64), weight


class SimulatedStreams:
    """Requests by their index in the trace.

    Attributes:
        prompt: Tokens in.
        answer: Tokens out. Only the simulated device looks at it: no scheduler may.
        reasoning: Leading tokens of it that are thinking, which its reader does not see. Of it a
            scheduler may know whether there are any, and whether they are over.
        limit: Output tokens that the client allows, which the server is told.
        kind: Which kind of answer the length predictor expects; `UNTOLD` at first.
        rate: Tokens per second that the reader consumes.
        weight, tolerance: Of its class (see `QosClass`).
        qos_class: Name of the class that the request names; empty: none.
        priority: Larger is more urgent; of a request without one the least.
        claim: The same as a policy sees it.
        ttft_slo, tbt_slo, tpot_slo: Seconds that it or its class asks for; NaN: it has no such
            objective.
        deadline: Seconds from its arrival that its class gives the whole answer; NaN: any time.
        max_wait: Seconds beyond which it is refused, 0.0: it waits as long as it takes; None: none
            is refused.
        expected_wait: What it was expected to wait when it came, where requests may be refused.
        likely_wait: After how much of it the way was likely free.
        refused: Those that were turned away, and why.
        tenant: Number of who asks, in the order of the trace; None: no request says so.
        tenant_weight: Of it, as the classes say.
        client: Number of its tenant, or else of its session; requests without either are each their
            own client.
        generated: Output tokens so far, also of the step under way.
        known: Those of which the scheduler has the results (`StepResults`).
        sent: When the request was due; NaN before that is known.
        arrival: When the scheduler first saw it, from when it counts; NaN before.
        due: When its reader runs dry if no more comes than is known; before the first visible
            token its arrival.
        first_text: When its first visible token came, as far as known; NaN before.
        phases: Where each stream stands.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        limits: Sequence[int] | None = None,
        classes: QosClasses = SHIPPED_CLASSES,
        max_wait: float = 0.0,
    ) -> None:
        """Streams of these requests.

        Args:
            requests: Of the trace.
            limits: Output tokens that the client allows; None: it allows what it gets.
            classes: Of the server.
            max_wait: Of classes that state none, see `WorkingSetConfig`.
        """
        count = len(requests)

        def column(values: list[int]) -> IntArray:
            return np.array(values, dtype=np.int64)

        def objectives(own: list[float | None], of_class: list[float | None]) -> FloatArray:
            asked = (
                one if one is not None else two for one, two in zip(own, of_class, strict=True)
            )
            return np.array([math.nan if value is None else value for value in asked])

        self.prompt = column([request.prompt_tokens for request in requests])
        self.answer = column([request.output_tokens for request in requests])
        self.reasoning = column([request.reasoning_tokens for request in requests])
        self.limit = self.answer if limits is None else column(list(limits))
        self.kind = np.full(count, UNTOLD, dtype=np.int64)
        expected = [_expected(request, classes) for request in requests]
        self.rate = np.array([each.rate for each in expected])
        self._pause = 1.0 / self.rate  # seconds that a reader takes for a token
        self._thinks = bool(self.reasoning.any())
        self.weight = np.array([each.weight for each in expected])
        self.tolerance = np.array([each.tolerance for each in expected])
        self.qos_class = [request.qos_class or "" for request in requests]
        self.priority = column(
            [LEAST if request.priority is None else request.priority for request in requests]
        )
        self.claim = shown_priorities(self.priority)
        self.ttft_slo = objectives(
            [request.ttft_slo_s for request in requests], [each.ttft_slo for each in expected]
        )
        self.tbt_slo = objectives(
            [request.tbt_slo_s for request in requests], [each.tbt_slo for each in expected]
        )
        self.tpot_slo = objectives([None] * count, [each.tpot_slo for each in expected])
        self.deadline = objectives(
            [request.deadline_s for request in requests], [each.deadline for each in expected]
        )
        waits = [max_wait if each.max_wait is None else each.max_wait for each in expected]
        self.max_wait = np.array(waits) if any(waits) else None
        self.expected_wait = np.full(count, np.nan)
        self.likely_wait = np.full(count, np.nan)
        self.refused: dict[int, str] = {}
        self.tenant, self.tenant_weight = _tenants(requests, classes)
        names = [
            request.tenant or request.session or (index,) for index, request in enumerate(requests)
        ]
        number = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.client = column([number[name] for name in names])
        self.sent = np.full(count, np.nan)
        self.arrival = np.full(count, np.nan)
        self.generated = np.zeros(count, dtype=np.int64)
        self.known = np.zeros(count, dtype=np.int64)
        self.due = np.full(count, np.nan)
        self.first_text = np.full(count, np.nan)
        self.phases = Phases(count)

    def __len__(self) -> int:
        return len(self.prompt)

    def visible(self, rows: IntArray) -> IntArray:
        """Known output tokens of `rows` that their readers see."""
        return np.asarray(np.maximum(self.known[rows] - self.reasoning[rows], 0))

    def arrive(self, index: int, sent: float, seen: float) -> None:
        """The request was sent, and the scheduler sees it now."""
        self.sent[index] = sent
        self.arrival[index] = self.due[index] = seen
        self.phases.arrive(index, seen)

    def refuse(self, index: int, sent: float, why: str) -> None:
        """The request was sent, and turned away."""
        self.sent[index] = sent
        self.refused[index] = why

    def deliver(self, rows: IntArray, times: FloatArray) -> None:
        """Note that each of `rows` got a token at each of `times` (not decreasing).

        A reader who runs dry waits for the next token: due becomes max(due, time) + 1 / rate,
        token after token; here for all tokens at once.
        """
        count = len(times)
        if not self._thinks:
            self.known[rows] += count
            self._read(rows, times, self.known[rows])
            return
        begun = self.known[rows]
        self.known[rows] += count
        unseen = np.clip(self.reasoning[rows] - begun, 0, count)
        if unseen.any():
            for number in np.unique(unseen).tolist():
                if number < count:
                    some = rows[unseen == number]
                    self._read(some, times[number:], self.known[some] - self.reasoning[some])
        else:
            self._read(rows, times, self.known[rows] - self.reasoning[rows])

    def _read(self, rows: IntArray, times: FloatArray, seen: IntArray) -> None:
        """Hand visible tokens to the readers of `rows`, who have `seen` so many with these."""
        count, start = len(times), times.item(0)
        pause = self._pause[rows]
        # A first token starts the reading, whenever the request came.
        before = self.due[rows]
        first = seen <= count
        if first.any():
            before[first] = start
            self.first_text[rows[first]] = start
        read = count * pause
        if count == 1 or _comes_faster(times, pause):
            # Who runs dry at all does so before the first of these tokens.
            self.due[rows] = np.maximum(before, start) + read
            return
        left = np.arange(count, 0, -1)[:, None] * pause
        latest = (times[:, None] + left).max(axis=0)
        self.due[rows] = np.maximum(before + read, latest)


def _comes_faster(times: FloatArray, pause: FloatArray) -> bool:
    """Whether tokens come faster than any of their readers reads, beyond what rounding can do."""
    shortest, longest = float(pause.min()), float(pause.max())
    end = times.item(-1) + len(times) * longest
    return shortest - float((times[1:] - times[:-1]).max()) > ROUNDING * end
