from __future__ import annotations

import pytest

from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.pool import host_pool_tokens, kv_pool_tokens, static_fraction

MIB = 1 << 20


@pytest.mark.parametrize(
    ("mib", "kept"),
    [  # 512 + 1.5 * chunk + 128 + 2 * rows + 8 * captured sizes
        (16 * 1024, 512 + 3072 + 128 + 16 + 8 * 42),
        (24564, 512 + 6144 + 128 + 96 + 8 * 50),
        (46068, 512 + 6144 + 128 + 64 + 8 * 50),
        (81559, 512 + 12288 + 128 + 512 + 8 * 58),
        (183359, 512 + 24576 + 128 + 1024 + 8 * 74),
    ],
)
def test_share_by_hand(mib: int, kept: int) -> None:
    assert static_fraction(mib * MIB) == round((mib - kept) / mib, 3)


@pytest.mark.parametrize(
    ("mib", "ranks", "kept"),
    [  # the same with 128 by device; from four devices on graphs have more rows
        (24564, 2, 512 + 6144 + 256 + 96 + 8 * 50),
        (46068, 4, 512 + 6144 + 512 + 320 + 8 * 50),
        (81559, 8, 512 + 12288 + 1024 + 1024 + 8 * 58),
    ],
)
def test_share_of_a_group_by_hand(mib: int, ranks: int, kept: int) -> None:
    assert static_fraction(mib * MIB, ranks) == round((mib - kept) / mib, 3)


def test_tokens_by_hand() -> None:
    memory = 24564 * MIB
    budget = static_fraction(memory) * memory
    assert kv_pool_tokens(memory, 16_060_522_496, 131072) == int((budget - 16_060_522_496) / 131072)
    assert host_pool_tokens(1001) == 2002


def test_refuses_a_model_that_does_not_fit() -> None:
    with pytest.raises(ProfileError, match=r"weights take 65\.5 GB.*25\.8 GB is 18\.1 GB"):
        kv_pool_tokens(24564 * MIB, 65_524_246_528, 262144)


def test_a_share_can_be_given() -> None:
    assert kv_pool_tokens(1000, 300, 7, fraction=0.5) == int(200 / 7)
    with pytest.raises(ProfileError, match=r"the share 0\.25 of one device with 0\.0 GB is"):
        kv_pool_tokens(1000, 300, 7, fraction=0.25)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 85.0, float("nan")])
def test_refuses_a_share_that_is_none(fraction: float) -> None:
    with pytest.raises(ProfileError, match=r"is .*; allowed is a number above 0 and below 1"):
        kv_pool_tokens(1000, 300, 7, fraction=fraction)


def test_refuses_a_memory_below_what_the_engine_keeps() -> None:
    with pytest.raises(ProfileError, match="device memory is 2048 MiB; SGLang keeps 4064 MiB"):
        static_fraction(2048 * MIB)
