"""Admission by objectives, pauses and token deposit together: the text is stock SGLang's."""

from __future__ import annotations

from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.tuned import tuned

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SLO = 0.2
"""Seconds per token, and between two: nothing is read as fast as it is generated."""
FILE = f"""
[classes.even]
rate = {1 / SLO:g}
ttft_slo = 3
tbt_slo = {SLO:g}
tpot_slo = {SLO:g}
deposit = true
"""
FLAGS = (
    *("--scheduler", "tokenflow", *tuned(admission="slo", min_run=0.05)),
    *("--max-total-tokens", "1500", "--hicache-ratio", "4"),
)
"""Twelve streams need about 3,500 tokens: they take turns."""
EVEN = {"max_new_tokens": 250, "custom_params": {"tokenflow_class": "even"}}
TRIES = 6
"""Crowds, one of which has to be too much; clients that stand still ask one after the other."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    path = tmp_path_factory.mktemp("objectives") / "classes.toml"
    path.write_text(FILE)
    return "--tokenflow-classes", str(path)


@pytest.fixture(scope="module")
def undisturbed(start: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What stock SGLang answers where all streams fit."""
    with start("--max-total-tokens", "8000") as served:
        answers: list[list[int]] = served.outputs(prompts, max_new_tokens=250)
    return answers


def test_the_text_is_that_of_stock_sglang(start, prompts, undisturbed, classes) -> None:
    with start(*FLAGS, *classes) as served:
        for _ in range(TRIES):
            assert served.outputs(prompts, stream=True, **EVEN) == undisturbed
            if served.total("tokenflow:preemptions_total") > 0:
                break
        else:
            raise AssertionError("there is not enough memory for all")
        assert served.total("tokenflow:resumes_total") > 0
        served.wait_until("deposit_tokens", 0.0)
        served.assert_clean()


def test_kv_that_is_not_copied_is_noticed(start, prompts, undisturbed, classes) -> None:
    """The control: what the streams that pause have on the host is loaded, and read."""
    env = {"TOKENFLOW_TEST_BREAK": "no-copy"}
    with start(*FLAGS, *classes, program=BROKEN, env=env) as served:
        crowds = (served.outputs(prompts, stream=True, **EVEN) for _ in range(TRIES))
        assert any(each != undisturbed for each in crowds)
