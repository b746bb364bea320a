from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.report.andes_qoe import andes_qoe

GAPS = st.lists(st.floats(0, 5), min_size=1, max_size=40)


def qoe(times, **changes):
    return andes_qoe(times, **{"rate": 1.0, "arrival": 0.0, "expected_ttft": 1.0, **changes})


def test_on_time_is_one():
    # Ideal at 1, 2, 3; the burst at 0.5 is early, which gains nothing and costs nothing.
    assert qoe([1, 2, 3]) == 1
    assert qoe([0.5, 0.5, 0.5]) == 1


def test_late_first_token_by_hand():
    # Ideal 1, 2, 3; actual 3, 4, 5; read to the end at 6. S_delay = 3 x 2 = 6.
    # S_whole = (6-1) + (6-2) + (6-3) = 12, of which 3 + 2 + 1 = 6 is below the actual curve.
    assert qoe([3, 3, 3]) == pytest.approx(0.5)


def test_a_stall_by_hand():
    # Ideal 1, 2, 3; actual 1, 5, 6 (a stall of 3 s delays both); end 7. S_delay = 3 + 3 = 6.
    # S_whole = 6 + 5 + 4 = 15.
    assert qoe([1, 5, 5]) == pytest.approx(1 - 6 / 15)


def test_one_token_late_by_hand():
    # Ideal 1, actual 4, end 5: S_delay = 3, S_whole = 4.
    assert qoe([4]) == pytest.approx(0.25)


def test_rate_and_arrival_by_hand():
    # 2 tokens/s from 10 s: ideal 11, 11.5; actual 12, 12.5; end 13. S_delay 2, S_whole 2 + 1.5.
    assert qoe([12, 12], rate=2.0, arrival=10.0) == pytest.approx(1 - 2 / 3.5)


def test_a_stream_that_broke_off_by_hand():
    # One of 3 tokens came on time; the reader gave up at 4. Ideal 1, 2, 3: S_whole = 3 + 2 + 1.
    assert qoe([1], output_tokens=3, until=4.0) == pytest.approx(3 / 6)
    # No reader misses a token that was not due yet when the reader gave up.
    assert qoe([1], output_tokens=3, until=2.0) == 1


def test_nothing_at_all_is_zero():
    assert qoe([]) == 0


def test_a_broken_stream_needs_its_end():
    with pytest.raises(ValueError, match="until must be given, 1 of 3 tokens came"):
        qoe([1], output_tokens=3)


@given(GAPS, st.floats(0.1, 20), st.floats(0, 5))
def test_within_bounds_and_delays_never_help(gaps, rate, delay):
    times = np.cumsum(gaps)
    prompt = qoe(times, rate=rate)
    assert 0 < prompt <= 1 + 1e-9
    assert qoe(times + delay, rate=rate) <= prompt + 1e-9


@given(GAPS, st.floats(0.1, 20))
def test_equals_the_paper_s_sums(gaps, rate):
    times = np.cumsum(gaps)
    actual, ideal = [], []
    for number, time in enumerate(times):
        ideal.append(1.0 + number / rate)
        actual.append(max(time, actual[-1] + 1 / rate if actual else ideal[0]))
    end = actual[-1] + 1 / rate
    delay = sum(a - i for a, i in zip(actual, ideal, strict=True))
    whole = delay + sum(end - a for a in actual)
    assert qoe(times, rate=rate) == pytest.approx(1 - delay / whole, abs=1e-9)
