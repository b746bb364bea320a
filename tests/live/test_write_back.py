"""The host drops copies of what is on the device, and streams are paused all the while.

What is looked at beside the tokens is SGLang's prefix tree: whether it holds together with copies
under way, by its own check, and who started the copies.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from identity.table import SCENARIOS
from servers.fixtures import SERVER_SIDE

pytestmark = pytest.mark.engine

WATCHED = str(SERVER_SIDE / "watched_tree.py")


@pytest.mark.parametrize(
    "name",
    [
        "written back",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "written back, pages of 16",
                "written back, two ranks",
                "written back, a tiny host",
                "windows, written back",
            )
        ),
    ],
)
def test_the_tree_holds_together_while_copies_make_room_for_others(
    arena, name, tmp_path: Path
) -> None:
    scenario = SCENARIOS[name]
    watch = {"TOKENFLOW_TEST_WATCH": str(tmp_path / "counted")}
    with arena.running(scenario, program=WATCHED, env=watch) as running:
        arena.check(scenario, running)
        served = running.served
        loaded = sum(
            served.total(f"tokenflow:{which}_tokens_total")
            for which in ("loaded_ahead", "resume_loaded")
        )
        served.assert_clean()
    found = sorted(tmp_path.glob("counted.?"))
    first, *others = [json.loads(path.read_text()) for path in found]
    print(first)
    assert len(others) == ("two ranks" in name)
    assert first["checks"] > 50
    assert loaded > 0, "copies come back"
    assert first["host locks"] == 0, "nothing is kept for streams that have ended"
    assert first["copied ahead"] > first.get("copied at eviction", 0)
    assert first["evictions with duplicates"] > 20
    whole = "copied ahead", "copied at eviction", "evictions with duplicates"
    for other in others:
        assert [other.get(each) for each in whole] == [first.get(each) for each in whole]
