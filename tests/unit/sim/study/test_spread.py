"""Jobs over cores and over Ray give what a loop gives."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest

from tokenflow_sgl.lab.sim import SimulationError
from tokenflow_sgl.lab.sim.study.spread import on_cores, on_ray

SWEEP_ON_RAY = """
import warnings
warnings.simplefilter("ignore")
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.sim import EngineOptions
from tokenflow_sgl.lab.sim.study.spread import on_ray
from tokenflow_sgl.lab.sim.study.sweep import Setup, sweep
from tokenflow_sgl.lab.traces import open_trace, transform

trace = transform.limit(open_trace("4090-a"), 12)
options = EngineOptions(max_total_tokens=9000, host_tokens=50_000)
setup = Setup(trace, load_profile("rtx4090", "llama3-8b"), options)
settings = [{"eta": 0.8}, {"eta": 1.2}, {"hysteresis": 3.0}]
with on_ray() as spread:
    there = sweep(setup, settings, spread=spread)
def here(function, shared, jobs):
    return (function(shared, job) for job in jobs)
assert there.equals(sweep(setup, settings, spread=here))
print(there.num_rows, "rows alike")
"""


def test_results_come_in_the_order_of_the_jobs() -> None:
    with on_cores(2) as spread:
        assert list(spread(operator.mul, 3, range(8))) == [3 * job for job in range(8)]


@pytest.mark.slow
def test_a_sweep_on_a_local_ray_is_the_sweep() -> None:
    # In a process of its own: Ray leaves threads and warnings behind.
    pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")
    done = subprocess.run(
        [sys.executable, "-c", SWEEP_ON_RAY], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "3 rows alike" in done.stdout


def test_without_ray_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SimulationError, match=r"pip install 'ray>="), on_ray():
        pass
