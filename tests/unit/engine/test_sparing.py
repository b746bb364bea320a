"""What comes with every request is logged once a minute."""

from __future__ import annotations

import logging

import pytest

from tokenflow_sgl.engine.frontend import messenger, sibling_workers
from tokenflow_sgl.engine.restore import (
    fetched_layer_copies,
    layer_fetch,
    layer_reads,
    tail_copies,
    tail_fetch,
)
from tokenflow_sgl.engine.telemetry.sparing import SECONDS, Sparing

LOGGERS = [
    module.logger
    for module in (
        *(messenger, sibling_workers),
        *(fetched_layer_copies, layer_fetch, layer_reads, tail_copies, tail_fetch),
    )
]


def test_the_same_message_comes_once_a_minute_and_says_how_many_did_not(caplog) -> None:
    class Clock:
        now = 5.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    logger = logging.getLogger("sparing")
    logger.addFilter(Sparing(clock))
    for number in range(115):
        logger.warning("fetching page %d failed", number)
    logger.warning("another one: 100 %")
    clock.now += SECONDS
    logger.warning("fetching page %d failed", 115)
    clock.now += SECONDS
    logger.warning("fetching page %d failed", 116)
    assert caplog.messages == [
        "fetching page 0 failed",
        "another one: 100 %",
        "fetching page 115 failed (and 114 times more since it was last said)",
        "fetching page 116 failed",
    ]


@pytest.mark.parametrize("logger", LOGGERS, ids=[logger.name for logger in LOGGERS])
def test_what_may_fail_with_every_request_is_logged_sparingly(logger) -> None:
    assert [type(each) for each in logger.filters] == [Sparing]
