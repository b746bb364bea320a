"""The policy's parameters: ranges, and messages that say what is allowed."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from tokenflow_sgl.policy import ConfigError, WorkingSetConfig

RANGED = [item for item in fields(WorkingSetConfig) if item.metadata["low"] is not None]


def by_name(item) -> str:
    return item.name


def test_every_number_has_a_range() -> None:
    plain = {item.name for item in fields(WorkingSetConfig)} - {item.name for item in RANGED}
    assert plain == {"pace", "park", "load_ahead", "load_chunks", "write_ahead", "admission"}


@pytest.mark.parametrize("item", fields(WorkingSetConfig), ids=by_name)
def test_every_parameter_says_what_it_means(item) -> None:
    assert len(item.metadata["help"].split()) > 4


@pytest.mark.parametrize("item", RANGED, ids=by_name)
def test_the_ends_of_the_range_are_allowed(item) -> None:
    for value in (item.metadata["low"], item.metadata["high"]):
        assert getattr(WorkingSetConfig(**{item.name: value}), item.name) == value


@pytest.mark.parametrize("item", RANGED, ids=by_name)
def test_beyond_the_range_is_refused(item) -> None:
    low, high = item.metadata["low"], item.metadata["high"]
    for value in (low - 1, high + 1, math.nan, math.inf, -math.inf):
        with pytest.raises(ConfigError) as caught:
            WorkingSetConfig(**{item.name: value})
        message = str(caught.value)
        assert message.startswith(f"{item.name} is {value!r}; allowed is {low:g} to ")


def test_the_message_as_a_whole() -> None:
    with pytest.raises(ConfigError, match=r"^eta is 11\.0; allowed is 0\.1 to 10$"):
        WorkingSetConfig(eta=11.0)


def test_words() -> None:
    for word in ("demand", "slo", "both"):
        assert WorkingSetConfig(admission=word).admission == word
    for word in ("", "SLO", 3, None):
        with pytest.raises(ConfigError, match=r"; allowed is demand or slo or both$"):
            WorkingSetConfig(admission=word)


def test_a_large_limit_is_shown_exactly() -> None:
    with pytest.raises(ConfigError, match=r"allowed is 16 to 1048576$"):
        WorkingSetConfig(prefill_chunk=1 << 21)
