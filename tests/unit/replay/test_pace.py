"""Whether an emulated device kept its pace, and the dilation at which it would have."""

import asyncio
import json
import math

import pytest

from tokenflow_sgl.lab.replay import Target, find_target
from tokenflow_sgl.lab.replay.pace import Pace, pace

DEVICE = {"time_dilation": 2.5, "steps": 0, "late_steps": 0}
EMULATED = {"internal_states": [{"emulated_device": DEVICE}]}


@pytest.fixture
def paced(stub):
    """What is said of a device that changes between two looks as the function does."""

    def ask(change, info=EMULATED, **behaviour):
        async def main():
            told = json.loads(json.dumps(info))
            async with stub.serve(stub.Behaviour(server_info=told, **behaviour)) as (server, url):
                target = await find_target(url)
                change(server, told["internal_states"][0]["emulated_device"])
                return await pace(target)

        return asyncio.run(main())

    return ask


@pytest.mark.parametrize(("late", "reason"), [(0, None), (1, None), (2, "late in 2 of 100 steps")])
def test_an_emulated_device_must_keep_its_pace(paced, late, reason):
    """One step in a hundred may be late; what was late before the run does not count."""

    def change(server, device):
        server.posts += 1

    said = paced(change, steps_per_request=100, late_per_request=late)
    assert [reason in each for each in said.lost] == ([] if reason is None else [True])


@pytest.mark.parametrize(
    ("starved_s", "serial", "reason"),
    [(0.09, False, None), (0.2, False, "starved for 2.0% of its time"), (0.2, True, None)],
)
def test_an_emulated_device_must_not_starve_but_where_a_real_one_would(
    paced, starved_s, serial, reason
):
    """It computes for 9.8 to 9.9 s more; that it starved before the run does not count."""
    info = json.loads(json.dumps(EMULATED)) | {"disable_overlap_schedule": serial}
    info["internal_states"][0]["emulated_device"] |= {"busy_seconds": 5.0, "starved_seconds": 3.0}

    def change(server, device):
        device["busy_seconds"] += 10.0 - starved_s
        device["starved_seconds"] += starved_s

    said = paced(change, info)
    assert [reason in each for each in said.lost] == ([] if reason is None else [True])
    assert said == Pace() or said.dilation == math.inf  # it keeps no count for other dilations


def test_the_dilation_that_it_needs_is_the_first_at_which_half_of_what_may_be_was_late(paced):
    info = json.loads(json.dumps(EMULATED))
    counts = {"3": (5, 0.0), "5": (5, 0.0), "10": (5, 0.0), "20": (5, 0.0)}
    info["internal_states"][0]["emulated_device"]["at_dilation"] = {
        dilation: {"late_steps": late, "starved_seconds": starved_s}
        for dilation, (late, starved_s) in counts.items()
    }

    def change(server, device):
        server.posts += 1
        device |= {"busy_seconds": 10.0, "starved_seconds": 0.3}
        for dilation, late, starved_s in (("3", 4, 0.0), ("5", 0, 0.06), ("10", 3, 0.04)):
            device["at_dilation"][dilation] = {"late_steps": 5 + late, "starved_seconds": starved_s}

    said = paced(change, info, steps_per_request=600)
    assert "starved for 2.9%" in said.lost[0]
    assert said.dilation == 10.0


def test_a_device_that_cannot_be_asked_afterwards(paced):
    def change(server, device):
        server.behaviour.server_info = None

    (said,) = paced(change).lost
    assert "did not say afterwards" in said and "Next: " in said


def test_a_real_device_is_not_asked():
    assert asyncio.run(pace(Target("http://127.0.0.1:9"))) == Pace()
