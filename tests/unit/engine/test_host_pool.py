"""How large the host's pool of KV is where no option says so."""

from __future__ import annotations

import pytest

from tokenflow_sgl.host_pool import GB, MOST_BYTES, raised_ratio


@pytest.mark.parametrize(
    ("device_gb", "ratio"),
    [(0.0, 4.0), (2.0, 4.0), (32.0, 4.0), (40.0, 3.2), (64.0, 2.0), (120.0, 2.0)],
)
def test_small_devices_get_more_than_twice_their_kv(device_gb, ratio) -> None:
    assert raised_ratio(device_gb * GB) == pytest.approx(ratio)


def test_less_memory_means_less_of_it_down_to_sglangs_default() -> None:
    assert raised_ratio(10 * GB, 30 * GB) == pytest.approx(3.0)
    assert raised_ratio(10 * GB, 5 * GB) == 2.0
    assert raised_ratio(10 * GB, 2 * MOST_BYTES) == 4.0
