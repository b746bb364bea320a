"""Deadlines as moments become seconds in the HTTP server, and nowhere else."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.engine.frontend.absolute_deadlines import with_seconds
from tokenflow_sgl.engine.terms import BY_DEADLINE, RateError, class_of
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, SHORTEST_SLO

NOW = 1_800_000_000.0


def settled(custom, params=None):
    return with_seconds({**(params or {}), "custom_params": custom}, lambda: NOW)


def test_a_moment_becomes_seconds_from_now() -> None:
    found = settled({"tokenflow_deadline_at": NOW + 20.5, "mine": 1}, {"top_p": 0.5})
    assert found == {"top_p": 0.5, "custom_params": {"mine": 1, "tokenflow_deadline": 20.5}}
    assert class_of(found["custom_params"], SHIPPED_CLASSES).deadline == 20.5


def test_what_has_passed_is_as_short_as_can_be() -> None:
    found = settled({"tokenflow_deadline_at": NOW - 20.0})
    assert found["custom_params"] == {"tokenflow_deadline": SHORTEST_SLO}


def test_each_of_several_has_its_own() -> None:
    many = [{"custom_params": {"tokenflow_deadline_at": NOW + n}} for n in (1, 2)] + [{}, None]
    found = with_seconds(many, lambda: NOW)
    assert [each["custom_params"]["tokenflow_deadline"] for each in found[:2]] == [1.0, 2.0]
    assert found[2:] == [{}, None]


@pytest.mark.parametrize("params", [None, {}, [], {"custom_params": None}, {"custom_params": [1]}])
def test_all_else_is_left_alone(params) -> None:
    assert with_seconds(params, lambda: NOW) == params


@pytest.mark.parametrize(
    "value", ["soon", True, None, math.nan, math.inf, 0, -1.0, NOW * 1e3, NOW + 90_000, 10**400]
)
def test_a_bad_moment_is_refused_in_one_sentence(value) -> None:
    with pytest.raises(RateError, match="tokenflow_deadline_at") as caught:
        settled({"tokenflow_deadline_at": value})
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 200


def test_a_moment_and_seconds_exclude_each_other() -> None:
    with pytest.raises(RateError, match="exclude each other"):
        settled({"tokenflow_deadline_at": NOW + 1, "tokenflow_deadline": 1})


def test_where_no_front_end_of_ours_reads_it_a_moment_is_refused() -> None:
    with pytest.raises(RateError, match="give tokenflow_deadline"):
        class_of({"tokenflow_deadline_at": NOW}, SHIPPED_CLASSES)


def test_a_request_with_a_deadline_alone_is_read_by_a_program() -> None:
    asked = class_of({"tokenflow_deadline": 20}, SHIPPED_CLASSES)
    assert (asked.name, asked.reader, asked.deadline) == (BY_DEADLINE.name, False, 20.0)
    both = class_of({"tokenflow_deadline": 20, "tokenflow_class": "listening"}, SHIPPED_CLASSES)
    assert (both.name, both.reader, both.deadline) == ("listening", True, 20.0)


@pytest.mark.parametrize("value", [0, -1, 86_401, "20", math.nan])
def test_a_bad_deadline_is_refused_with_what_is_allowed(value) -> None:
    with pytest.raises(RateError, match=r"seconds between 0\.001 and 86400"):
        class_of({"tokenflow_deadline": value}, SHIPPED_CLASSES)
