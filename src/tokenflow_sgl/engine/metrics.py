"""The scheduler's metrics on SGLang's own /metrics page, beside `sglang:*`.

SGLang collects in Prometheus multiprocess mode, so the metric objects are made in the
scheduler process after its PROMETHEUS_MULTIPROC_DIR is set, with SGLang's own labels.
Series are bounded: labels are the server's, plus the rate class and fixed enumerations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenflow_sgl.policy import Cause, Mode

BUFFER_SECONDS = (0.0, 0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
RECOMPUTED_TOKENS = (0, 1, 2, 4, 8, 16, 17, 32, 64, 128, 256, 512, 1024, 4096, 16384)
PASS_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)


class Recorder:
    """What the scheduler reports. This one reports nowhere: without --enable-metrics."""

    def delivered(self, qos_class: str, effective: float, stalls: int, seconds: float) -> None:
        """Effective tokens, stalls and stall seconds of one iteration, for one rate class."""

    def preempted(self, cause: Cause) -> None:
        """One stream was preempted."""

    def resumed(self, recomputed: int, loaded: int) -> None:
        """One paused stream is taken up again, with so many tokens recomputed and loaded."""

    def written_ahead(self, tokens: int) -> None:
        """So many tokens of running streams are on their way to the host."""

    def released(self, tail: int, needed: int, held: int) -> None:
        """A preempted stream leaves the device.

        tail: its tokens that are copied only now. needed: those that were copied ahead. held: all.
        """

    def loaded_ahead(self, tokens: int) -> None:
        """So many tokens of a paused stream are on their way back, beside the steps."""

    def link(self, direction: str, rate: float, queued: int) -> None:
        """Tokens per second of a direction, NaN: unknown; tokens that have not landed yet."""

    def spent(self, seconds: float) -> None:
        """So much time of the scheduler loop went into this package."""

    def levels(self, running: int, paused: int, waiting: int, working_set: int) -> None:
        """How many streams are where."""

    def buffer(self, qos_class: str, seconds: float) -> None:
        """One stream's unread output."""

    def policy_pass(self, mode: Mode, seconds: float) -> None:
        """One pass was decided in `mode` and took `seconds`."""

    def policy_error(self) -> None:
        """The policy raised."""


class PrometheusRecorder(Recorder):
    """Writes `tokenflow:*` metrics with the labels of SGLang's own collector."""

    def __init__(self, labels: Mapping[str, Any]) -> None:
        # Only after SGLang has set PROMETHEUS_MULTIPROC_DIR; an earlier import counts nowhere.
        from prometheus_client import Counter, Gauge, Histogram

        names = list(labels)
        self._labels = dict(labels)

        def counter(name: str, text: str, *extra: str) -> Any:
            return Counter(f"tokenflow:{name}", text, [*names, *extra])

        def gauge(name: str, text: str, *extra: str) -> Any:
            return Gauge(
                f"tokenflow:{name}", text, [*names, *extra], multiprocess_mode="mostrecent"
            )

        def histogram(name: str, text: str, buckets: tuple[float, ...], *extra: str) -> Any:
            return Histogram(f"tokenflow:{name}", text, [*names, *extra], buckets=buckets)

        self._running = gauge("running_streams", "Streams that hold KV and are served.")
        self._paused = gauge("paused_streams", "Preempted streams that wait for their turn.")
        self._waiting = gauge("waiting_streams", "Streams without a first token yet.")
        self._working_set = gauge("working_set_streams", "Streams the policy promised to serve.")
        self._preemptions = counter("preemptions_total", "Preemptions by cause.", "cause")
        self._resumes = counter("resumes_total", "Paused streams taken up again.")
        self._recomputed = histogram(
            "resume_recomputed_tokens",
            "Tokens recomputed when a stream was resumed.",
            RECOMPUTED_TOKENS,
        )
        self._loaded = counter(
            "resume_loaded_tokens_total", "Tokens loaded from host memory by resumes."
        )
        self._written = counter(
            "written_ahead_tokens_total",
            "Tokens of running streams copied to host memory before anybody was preempted.",
        )
        self._needed = counter(
            "written_ahead_needed_tokens_total",
            "Of these, tokens of streams that were preempted afterwards: written / needed is the "
            "write amplification.",
        )
        self._tail = histogram(
            "preemption_tail_tokens",
            "Tokens of a preempted stream that had no host copy when it left the device.",
            RECOMPUTED_TOKENS,
        )
        self._held = counter(
            "preempted_tokens_total",
            "KV tokens that preempted streams held: what a swap of all of it would have copied.",
        )
        self._loaded_ahead = counter(
            "loaded_ahead_tokens_total",
            "Tokens of paused streams loaded from host memory beside the steps, ahead of a resume.",
        )
        self._rate = gauge(
            "link_tokens_per_second",
            "KV tokens per second that copies to the host (store) or back (load) run at, as the "
            "policy expects; NaN: none yet.",
            "direction",
        )
        self._queue = gauge(
            "link_queue_tokens", "KV tokens of copies that have not landed yet.", "direction"
        )
        self._buffer = histogram(
            "buffer_seconds",
            "Unread output per stream in seconds of reading, sampled once a second.",
            BUFFER_SECONDS,
            "qos_class",
        )
        self._stalls = counter("stalls_total", "Reader stalls.", "qos_class")
        self._stall_seconds = counter(
            "stall_seconds_total", "Seconds that readers stood still.", "qos_class"
        )
        self._effective = counter(
            "effective_tokens_total",
            "Tokens weighted by their use to the reader: 1 while less than 10 % of the "
            "expected output lies unread, down to 0 at 20 %.",
            "qos_class",
        )
        self._mode = gauge("mode", "1 for the scheduler's present mode, 0 for the others.", "mode")
        self._passes = histogram(
            "policy_pass_seconds", "Time of one policy pass outside idle mode.", PASS_SECONDS
        )
        self._spent = counter(
            "scheduling_seconds_total",
            "Time that this package adds to SGLang's scheduler loop: accounting, policy passes, "
            "preempting, starting copies.",
        )
        self._errors = counter(
            "policy_errors_total", "Policy passes that failed and ran the engine's own policy."
        )
        self._last_mode: Mode | None = None
        # A series that exists from the start can be alerted on.
        for cause in Cause:
            self._preemptions.labels(**self._labels, cause=cause.value)
        self._errors.labels(**self._labels)
        self._resumes.labels(**self._labels)
        self._written.labels(**self._labels)
        self._needed.labels(**self._labels)
        self._held.labels(**self._labels)
        self._loaded_ahead.labels(**self._labels)
        self._spent.labels(**self._labels)
        self._set_mode(Mode.IDLE)

    def delivered(self, qos_class: str, effective: float, stalls: int, seconds: float) -> None:
        """Effective tokens, stalls and stall seconds of one iteration, for one rate class."""
        if effective:
            self._effective.labels(**self._labels, qos_class=qos_class).inc(effective)
        if stalls:
            self._stalls.labels(**self._labels, qos_class=qos_class).inc(stalls)
            self._stall_seconds.labels(**self._labels, qos_class=qos_class).inc(seconds)

    def preempted(self, cause: Cause) -> None:
        """One stream was preempted."""
        self._preemptions.labels(**self._labels, cause=cause.value).inc()

    def resumed(self, recomputed: int, loaded: int) -> None:
        """One paused stream is taken up again, with so many tokens recomputed and loaded."""
        self._resumes.labels(**self._labels).inc()
        self._recomputed.labels(**self._labels).observe(recomputed)
        if loaded:
            self._loaded.labels(**self._labels).inc(loaded)

    def written_ahead(self, tokens: int) -> None:
        """So many tokens of running streams are on their way to the host."""
        self._written.labels(**self._labels).inc(tokens)

    def released(self, tail: int, needed: int, held: int) -> None:
        """A preempted stream leaves the device."""
        self._held.labels(**self._labels).inc(held)
        self._tail.labels(**self._labels).observe(tail)
        if needed:
            self._needed.labels(**self._labels).inc(needed)

    def loaded_ahead(self, tokens: int) -> None:
        """So many tokens of a paused stream are on their way back, beside the steps."""
        self._loaded_ahead.labels(**self._labels).inc(tokens)

    def link(self, direction: str, rate: float, queued: int) -> None:
        """Tokens per second of a direction, NaN: unknown; tokens that have not landed yet."""
        self._rate.labels(**self._labels, direction=direction).set(rate)
        self._queue.labels(**self._labels, direction=direction).set(queued)

    def spent(self, seconds: float) -> None:
        """So much time of the scheduler loop went into this package."""
        self._spent.labels(**self._labels).inc(seconds)

    def levels(self, running: int, paused: int, waiting: int, working_set: int) -> None:
        """How many streams are where."""
        self._running.labels(**self._labels).set(running)
        self._paused.labels(**self._labels).set(paused)
        self._waiting.labels(**self._labels).set(waiting)
        self._working_set.labels(**self._labels).set(working_set)

    def buffer(self, qos_class: str, seconds: float) -> None:
        """One stream's unread output."""
        self._buffer.labels(**self._labels, qos_class=qos_class).observe(seconds)

    def policy_pass(self, mode: Mode, seconds: float) -> None:
        """One pass was decided in `mode` and took `seconds`."""
        if mode is not Mode.IDLE:
            self._passes.labels(**self._labels).observe(seconds)
        if mode is not self._last_mode:
            self._set_mode(mode)

    def policy_error(self) -> None:
        """The policy raised."""
        self._errors.labels(**self._labels).inc()

    def _set_mode(self, mode: Mode) -> None:
        for each in Mode:
            self._mode.labels(**self._labels, mode=each.value).set(float(each is mode))
        self._last_mode = mode
