from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tokenflow_sgl.lab.profiles.monotone import non_decreasing

GRIDS = arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(1, 9)
)


def test_a_dip_is_shared_between_its_sides() -> None:
    values = np.array([[1.0, 4.0, 2.0, 5.0]])
    assert non_decreasing(values).tolist() == [[1.0, 3.0, 3.0, 5.0]]


@given(GRIDS)
def test_result_never_falls_and_stays_within_the_range(values: np.ndarray) -> None:
    result = non_decreasing(values)
    assert (np.diff(result, axis=0) >= 0).all() and (np.diff(result, axis=1) >= 0).all()
    assert result.min() >= values.min() and result.max() <= values.max()


@given(GRIDS)
def test_non_decreasing_values_stay(values: np.ndarray) -> None:
    sorted_values = np.sort(np.sort(values, axis=0), axis=1)
    assert (non_decreasing(sorted_values) == sorted_values).all()
