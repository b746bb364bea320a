"""Andes' quality of experience of one stream: the share of the ideal reading that was reached.

Source: Liu et al., "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text Streaming
Services" (arXiv 2404.16283, section 3.1):

    ideal_i  = arrival + expected TTFT + (i - 1) / rate
    actual_i = max(delivered_i, actual_{i-1} + 1 / rate),  actual_1 >= ideal_1
    S_delay  = sum_i (actual_i - ideal_i)
    QoE      = 1 - S_delay / S_whole

S_whole is S_delay plus the area below the actual curve (tokens read over time), which is the
area below the ideal curve, both up to the same moment. The paper leaves that moment open; here
it is when the last token has been read (actual_n + 1 / rate), so that one token has an area too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.qos import consumed_at


def andes_qoe(
    token_times: ArrayLike,
    *,
    rate: float,
    arrival: float,
    expected_ttft: float,
    output_tokens: int | None = None,
    until: float | None = None,
) -> float:
    """Return the QoE of one stream, 0 to 1.

    Tokens before their ideal moment gain nothing: reading does not begin before the expected TTFT.
    A stream that broke off is judged up to `until`; tokens that were ideally due by then and never
    came are part of S_delay. A stream without any token has 0.

    Args:
        token_times: Delivery times, seconds, never decreasing, shape (n,).
        rate: Reading speed, tokens/s.
        arrival: Arrival of the request, seconds.
        expected_ttft: When the ideal reader begins, seconds after the arrival.
        output_tokens: Total output length L >= n; default n.
        until: When the reader gave up, seconds; needed when L > n.
    """
    times = np.asarray(token_times, dtype=np.float64)
    if not times.size:
        return 0.0
    start = arrival + expected_ttft
    actual = consumed_at(np.maximum(times, start), rate)
    end = float(actual[-1]) + 1.0 / rate
    due = int(times.size)
    if output_tokens is not None and output_tokens > times.size:
        if until is None:
            raise ValueError(f"until must be given, {times.size} of {output_tokens} tokens came")
        end = max(end, until)
        due = output_tokens
    ideal = start + np.arange(due) / rate
    whole = float(np.maximum(end - ideal, 0.0).sum())
    had = float((end - actual).sum())
    return had / whole
