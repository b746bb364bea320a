"""What of a waiting prompt is cached, as a live server's policy sees it."""

from __future__ import annotations

import functools
import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

BEGINNING = 400
"""Tokens that an earlier prompt has computed."""
CROWD = {"max_new_tokens": 250, "custom_params": {"tokenflow_rate": 10}, "stream": True}
"""Twelve of these need more than twice the memory."""


def uncached(log: Path) -> dict[str, list[tuple[int, int]]]:
    """By request: (prompt, uncached tokens) in the lines in which it waits."""
    found = defaultdict(list)
    for line in log.read_text().splitlines():
        for stream in json.loads(line)["candidates"]:
            if stream["phase"] == "waiting":
                found[stream["rid"]].append((stream["prompt"], stream["uncached"]))
    return found


@pytest.mark.parametrize(
    ("page", "more"), [(1, ()), (16, ()), (1, ("--tp-size", "2", "--tokenflow-check-ranks"))]
)
def test_the_policy_sees_what_is_cached(start, prompts, tmp_path, page, more) -> None:
    rng = random.Random(9)

    def drawn(tokens: int) -> list[int]:
        return [rng.randrange(10, 200) for _ in range(tokens)]

    beginning = drawn(BEGINNING)
    again, fresh = [*beginning, *drawn(50)], drawn(BEGINNING + 50)
    log = tmp_path / "decisions.jsonl"
    flags = ("--scheduler", "tokenflow", "--tokenflow-decision-log", str(log))
    memory = ("--max-total-tokens", "1504", "--hicache-ratio", "4", "--page-size", str(page))
    with start(*flags, *memory, *more) as served:

        def late(ids: list[int], rid: str) -> Any:
            time.sleep(0.5)
            return served.generate(ids, rid=rid, stream=True)

        served.generate(beginning, max_new_tokens=4)
        crowd = [functools.partial(served.generate, prompt, **CROWD) for prompt in prompts]
        late_ones = [
            functools.partial(late, again, "again"),
            functools.partial(late, fresh, "fresh"),
        ]
        answers = served.together([*crowd, *late_ones])
        for ids, answer in zip((again, fresh), answers[-2:], strict=True):
            assert answer.status == 200
            assert served.outputs([ids])[0] == answer.body["output_ids"]
        assert served.total("tokenflow:policy_errors_total") == 0
        served.assert_clean()
    seen = uncached(log)
    whole = BEGINNING + 50
    assert min(seen["again"]) == (whole, whole - BEGINNING // page * page)
    assert set(seen["fresh"]) == {(whole, whole)}
