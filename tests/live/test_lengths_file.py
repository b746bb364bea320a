"""What a live server has learned of answers' lengths is there when it starts again."""

from __future__ import annotations

import pytest
from servers.fixtures import COLD
from servers.tuned import CHECK_RANKS

from tokenflow_sgl.lab.demo.server import ServerError
from tokenflow_sgl.policy.lengths_document import read_lengths

pytestmark = pytest.mark.engine

PATIENT = 60.0
"""Seconds for a graceful stop: SGLang looks every 5 s whether it should, then ends schedulers."""
AGENT = {"tokenflow_class": "agent"}


@pytest.mark.slow
def test_lengths_survive_a_restart(start, prompts, tmp_path) -> None:
    path = tmp_path / "lengths.json"
    flags = ("--scheduler", "tokenflow", "--tokenflow-lengths-file", str(path))
    known = 0.0
    for tp, asked in (("1", prompts), ("2", prompts[:1])):
        ranks = ("--tp-size", tp, CHECK_RANKS)
        with start(*flags, *ranks, launcher=COLD, stop_timeout_s=PATIENT) as served:
            served.outputs(asked, stream=True, max_new_tokens=8, custom_params=AGENT)
            served.assert_clean()
        # Written as the server ends: it has not run for a minute.
        found = read_lengths(path.read_text())
        row = found.kinds.index((False, "agent", 0)) + 1  # SGLang's warm-up is of another kind
        now = float((found.ended + found.cut)[row].sum())
        assert now == pytest.approx(known + len(asked), rel=0.05)
        known = now
    assert [each.name for each in tmp_path.iterdir()] == ["lengths.json"]


def test_a_file_that_is_none_of_ours_stops_the_start(start, tmp_path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text("{}")
    flags = ("--scheduler", "tokenflow", "--tokenflow-lengths-file", str(path))
    sentence = r"lengths\.json' is no file of learned lengths"
    with pytest.raises(ServerError, match=sentence), start(*flags):
        pass
    assert path.read_text() == "{}"
