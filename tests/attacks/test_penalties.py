"""Penalties with overlap scheduling: stock SGLang's own answers depend on what else is served.

SGLang counts the last token that it has processed when it prepares a step. Usually that is the one
before the last; after two prefills in a row, whose first result it processes at once, it is the
last, and counts again for the next step. So there is no undisturbed answer to be identical to.
Without overlap there is (see engine/test_features.py). If this fails, SGLang has mended it: then
the identity tests should cover penalties with overlap, too.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

HOW = {"frequency_penalty": 0.7, "max_new_tokens": 64}
TRIES = 10
"""On a machine that stands still for a moment all prompts may come into one prefill."""


@pytest.mark.slow
def test_stocks_own_answers_depend_on_what_else_is_served(start, prompts) -> None:
    with start("--chunked-prefill-size", "32", "--max-total-tokens", "8000") as stock:
        alone = [stock.outputs([prompt], **HOW)[0] for prompt in prompts]
        again = [stock.outputs([prompt], **HOW)[0] for prompt in prompts]
        assert again == alone
        for _ in range(TRIES):
            together = stock.outputs(prompts, **HOW)
            if together != alone:
                return
    raise AssertionError(f"all answers were the same {TRIES} times: SGLang may have mended it")
