"""A prefill server with `--scheduler tokenflow`, and SGLang's decode server: the pair's tokens.

Both are real SGLang on the CPU, with its Mooncake backend over the emulator's link (`kv_link.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from servers.fixtures import BROKEN
from servers.meeting import pair

pytestmark = pytest.mark.engine

POOL = ("--max-total-tokens", "4000")
PREFILL = ("--scheduler", "tokenflow")
SAMPLING: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def expected(start, prompts) -> list[list[int]]:
    """What one server says."""
    with start(*POOL) as served:
        return served.outputs(prompts, **SAMPLING)


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--page-size", "16"), marks=pytest.mark.slow)], ids=["1", "16"]
)
def test_a_pair_says_what_one_server_says(start, prompts, expected, flags) -> None:
    with pair(start, *POOL, *flags, prefill=PREFILL) as both:
        assert both.outputs(prompts, **SAMPLING) == expected
        assert both.outputs(prompts, **SAMPLING) == expected, "with prefixes that the first one has"
        assert "tokenflow scheduler is off" in both.prefill.log()
        for served in (both.prefill, both.decode):
            served.flush_when_idle()


@pytest.mark.slow
def test_kv_of_other_layers_is_noticed(start, prompts, expected) -> None:
    broken = {"program": BROKEN, "env": {"TOKENFLOW_TEST_BREAK": "other-layers-kv"}}
    with pair(start, *POOL, prefill=PREFILL, first=broken) as both:
        assert both.outputs(prompts, **SAMPLING) != expected
