import json

import pytest

from tokenflow_sgl.lab.replay import ReplayError, ReplayOptions


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("seed", -1, "at least 0"),
        ("warm_up_requests", 1.5, "a whole number"),
        ("warm_up_burst", -3, "a whole number of at least 0"),
        ("warm_up_s", float("nan"), "a number of at least 0"),
        ("temperature", -0.1, "a number of at least 0"),
        ("timeout_s", 0.0, "seconds above 0"),
        ("timeout_s", float("inf"), "seconds above 0"),
        ("token_ids", (5, 5), "LO:HI with 0 <= LO < HI"),
        ("token_ids", (-1, 5), "LO:HI"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(field, value, allowed):
    with pytest.raises(ReplayError, match=f"{field} is .*{allowed}"):
        ReplayOptions(**{field: value})


def test_ignoring_eos_needs_known_lengths():
    with pytest.raises(ReplayError, match=r"ignore_eos is given without known_lengths .*both"):
        ReplayOptions(ignore_eos=True)
    assert ReplayOptions(ignore_eos=True, known_lengths=True).ignore_eos


def test_options_are_described_in_plain_values():
    described = ReplayOptions(token_ids=(3, 9)).describe()
    assert json.loads(json.dumps(described))["api"] == "generate"
    assert described["token_ids"] == (3, 9)
    assert described["known_lengths"] is False
