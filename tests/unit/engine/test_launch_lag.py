"""Whether a step is computed when its launch returns, by the device and what a platform says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine import launch_lag as module
from tokenflow_sgl.engine.launch_lag import launch_lag


@pytest.mark.parametrize(
    ("device", "said", "lag"),
    [
        ("cuda", {}, 1),
        ("cpu", {}, 0),
        ("cpu", {"launches_ahead": True}, 1),
        ("cpu", {"launches_ahead": False}, 0),
    ],
)
def test_a_loop_is_a_step_ahead_of_a_device_that_computes_by_itself(
    monkeypatch, device, said, lag
) -> None:
    monkeypatch.setattr(module, "current_platform", SimpleNamespace(**said))
    assert launch_lag(SimpleNamespace(device=device, enable_overlap=True)) == lag
    assert launch_lag(SimpleNamespace(device=device, enable_overlap=False)) == 0
