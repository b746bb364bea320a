"""SGLang's running timeout, without the time for which a stream was paused."""

from __future__ import annotations

from types import SimpleNamespace

from fakes.sglang import Request

from tokenflow_sgl.engine.timeouts import PausedTime


def request(rid: str) -> Request:
    return Request(rid, time_stats=SimpleNamespace(forward_entry_time=0.0))


def test_pauses_do_not_count_as_running() -> None:
    now = [0.0]
    times = PausedTime(clock=lambda: now[0])
    paused, resumed, running = map(request, ("paused", "resumed", "running"))
    now[0] = 2.0
    times.begin(paused)
    times.begin(resumed)
    now[0] = 7.0
    times.end(resumed)
    times.end(running)  # was never paused
    now[0] = 8.0
    everything = (paused, resumed, running)
    assert times.overdue(everything, 2.0) == {"resumed", "running"}
    assert times.overdue(everything, 3.0) == {"running"}
    assert times.overdue(everything, 8.0) == set()
    times.forget(resumed)
    assert times.overdue(everything, 3.0) == {"resumed", "running"}
