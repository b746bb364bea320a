"""Deadlines as moments: `tokenflow_deadline_at` becomes `tokenflow_deadline`, seconds from now.

A chain of dependent calls states one moment for all of them, so each of its calls has what the ones
before it have left. It becomes seconds here, once: the ranks of a server have clocks of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tokenflow_sgl.engine.shared_clock import device_time
from tokenflow_sgl.engine.terms import (
    DEADLINE_AT_KEY,
    DEADLINE_KEY,
    RateError,
    check_deadline_at,
)
from tokenflow_sgl.qos.classes import LONGEST_DEADLINE, SHORTEST_SLO


def with_seconds(params: Any, clock: Callable[[], float] = time.time) -> Any:
    """Sampling parameters, a mapping or a list of them, with all moments as seconds from now.

    Args:
        params: Of a request; what is nothing of the kind is left to SGLang.
        clock: Seconds of Unix time.

    Raises:
        RateError: A moment is no number, lies more than a day ahead, or stands beside a deadline in
            seconds.
    """
    if isinstance(params, list):
        return [with_seconds(each, clock) for each in params]
    custom = params.get("custom_params") if isinstance(params, dict) else None
    if not isinstance(custom, Mapping) or DEADLINE_AT_KEY not in custom:
        return params
    if DEADLINE_KEY in custom:
        raise RateError(f"{DEADLINE_KEY} and {DEADLINE_AT_KEY} exclude each other; give one.")
    left = device_time(check_deadline_at(custom[DEADLINE_AT_KEY]) - clock())
    if left > LONGEST_DEADLINE:
        raise RateError(
            f"{DEADLINE_AT_KEY} lies {left:.0f} s ahead; it must be Unix time in seconds, at most "
            f"{LONGEST_DEADLINE:g} s ahead."
        )
    rest = {key: value for key, value in custom.items() if key != DEADLINE_AT_KEY}
    # What has passed cannot be kept, and goes behind all others.
    return {**params, "custom_params": {**rest, DEADLINE_KEY: max(left, SHORTEST_SLO)}}
