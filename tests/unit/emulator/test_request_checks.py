"""What an emulated device refuses with a sentence, before SGLang takes it in."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl_emulator.timed.request_checks import check_arrival, check_logprobs
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, Arrival, parse_arrival

GOOD = {"at_s": 0.25, "index": 3, "of": 60}


def asked(custom: Any) -> Any:
    return SimpleNamespace(sampling_params={"custom_params": custom})


def test_an_arrival_is_taken_as_it_is() -> None:
    check_arrival(None, asked({ARRIVAL_KEY: GOOD}), [1])
    assert parse_arrival(GOOD) == Arrival(0.25, 3, 60)
    assert parse_arrival({"at_s": 0, "index": 0, "of": 1}) == Arrival(0.0, 0, 1)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("at_s", "soon", "a number of seconds from 0 to 1e"),
        ("at_s", "0.5", "a number of seconds"),
        ("at_s", math.nan, "a number of seconds"),
        ("at_s", math.inf, "a number of seconds"),
        ("at_s", -0.1, "a number of seconds"),
        ("at_s", True, "a number of seconds"),
        ("at_s", None, "a number of seconds"),
        ("index", -1, "a whole number from 0 and below of, which is 60"),
        ("index", 60, "a whole number from 0 and below of, which is 60"),
        ("index", 1.0, "a whole number from 0"),
        ("index", None, "a whole number from 0"),
        ("of", 0, "a whole number of at least 1"),
        ("of", "60", "a whole number of at least 1"),
        ("of", None, "a whole number of at least 1"),
        ("later_turns", -1, "a whole number from 0 and below of, which is 60"),
        ("later_turns", 60, "a whole number from 0 and below of, which is 60"),
        ("later_turns", None, "a whole number from 0"),
        ("after", 3, "the index of another request, below of, which is 60"),
        ("after", 60, "the index of another request"),
        ("after", "2", "the index of another request"),
    ],
)
def test_what_is_no_arrival_is_refused(field: str, value: Any, allowed: str) -> None:
    fields = {**GOOD, field: value}
    with pytest.raises(ValueError) as refused:
        check_arrival(None, asked({ARRIVAL_KEY: fields}), [1])
    assert str(refused.value).startswith(
        f"{ARRIVAL_KEY}.{field} is {value!r}; allowed is {allowed}"
    )


@pytest.mark.parametrize("fields", ["soon", None, 5, [0.25, 3, 60]])
def test_an_arrival_has_three_fields(fields: Any) -> None:
    with pytest.raises(ValueError, match="allowed is an object with at_s, index and of"):
        check_arrival(None, asked({ARRIVAL_KEY: fields}), [1])


@pytest.mark.parametrize("custom", [None, {}, {"tokenflow_rate": 9.0}])
def test_requests_that_say_nothing_pass(custom: Any) -> None:
    check_arrival(None, asked(custom), [1])
    check_arrival(None, SimpleNamespace(sampling_params=None), [1])


@pytest.mark.parametrize("start", [0, 7])
def test_log_probabilities_of_a_prompt_are_refused(start: int) -> None:
    obj = SimpleNamespace(return_logprob=True, logprob_start_len=start)
    with pytest.raises(ValueError, match=f"logprob_start_len is {start}: .*; allowed is -1"):
        check_logprobs(None, obj, [1] * 9)


@pytest.mark.parametrize(("wanted", "start"), [(True, -1), (True, None), (False, 0)])
def test_those_of_an_answer_are_not(wanted: bool, start: int | None) -> None:
    check_logprobs(None, SimpleNamespace(return_logprob=wanted, logprob_start_len=start), [1])
    check_logprobs(None, SimpleNamespace(), [1])
