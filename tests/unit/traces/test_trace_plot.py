from __future__ import annotations

import pytest

from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, open_trace
from tokenflow_sgl.lab.traces.trace_plot import draw


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures(suffix, tmp_path):
    path = tmp_path / f"p.{suffix}"
    draw(path, open_trace("h200-d?duration=30"))
    assert path.read_bytes()[:4] == (b"\x89PNG" if suffix == "png" else b"<?xm")


@pytest.mark.parametrize(
    "times",
    [[0.0], [7.0] * 5, [1e6, 1e6 + 1e-6], [0.0, 0.0, 1e7], [n * 0.1 for n in range(1000)]],
)
def test_unusual_arrivals(times, tmp_path):
    requests = tuple(TraceRequest(time, 1 + 10**6 * (time > 5), 1) for time in times)
    draw(tmp_path / "p.png", Trace("t", requests, Accounting(len(times) + 1, len(times), {"x": 1})))
    assert (tmp_path / "p.png").stat().st_size > 10_000
