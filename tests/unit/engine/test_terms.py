"""The reading rate of a request, and the sentence for a client who got it wrong."""

from __future__ import annotations

import dataclasses
import math
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.engine.frontend.slo_headers import (
    add_to_body,
    add_to_sampling,
    objectives_of,
)
from tokenflow_sgl.engine.terms import (
    CLASS_KEY,
    HIGHEST_RATE,
    LOWEST_RATE,
    MAX_WAIT_KEY,
    OBJECTIVE_KEYS,
    RATE_KEY,
    RateError,
    check_place,
    class_of,
)
from tokenflow_sgl.qos.classes import SHIPPED, SHIPPED_CLASSES, SLOS, QosClass, QosClasses


def refusal(custom_params) -> str:
    with pytest.raises(RateError) as caught:
        class_of(custom_params, SHIPPED_CLASSES)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("params", [None, {}, {"other": 5}, [], "tokenflow_rate", 7])
def test_a_request_that_says_nothing_gets_the_default(params) -> None:
    assert class_of(params, SHIPPED_CLASSES) == QosClass("default", 10.0)


@pytest.mark.parametrize("rate", [LOWEST_RATE, 1, 12.5, 20, HIGHEST_RATE])
def test_a_rate_of_its_own(rate) -> None:
    found = class_of({RATE_KEY: rate, "other": "left alone"}, SHIPPED_CLASSES)
    assert found == QosClass("custom", rate)
    assert type(found.rate) is float


@pytest.mark.parametrize("name", SHIPPED)
def test_a_named_class(name) -> None:
    assert class_of({CLASS_KEY: name}, SHIPPED_CLASSES) == SHIPPED[name]


def test_objectives_stand_beside_a_rate_or_a_class() -> None:
    asked = {"tokenflow_ttft_slo": 3, "tokenflow_tbt_slo": 1, "tokenflow_tpot_slo": 0.2}
    stated = {"ttft_slo": 3.0, "tbt_slo": 1.0, "tpot_slo": 0.2}
    found = class_of({**asked, RATE_KEY: 20}, SHIPPED_CLASSES)
    assert found == QosClass("custom", 20.0, **stated)
    found = class_of({**asked, CLASS_KEY: "listening"}, SHIPPED_CLASSES)
    assert found == dataclasses.replace(SHIPPED["listening"], **stated)
    found = class_of({"tokenflow_ttft_slo": 3}, SHIPPED_CLASSES)
    assert found == QosClass("default", 10.0, ttft_slo=3.0)


@pytest.mark.parametrize(("seconds", "rate"), [(0.2, 5.0), (0.001, 1000.0), (600, LOWEST_RATE)])
def test_a_time_per_token_alone_is_a_rate(seconds, rate) -> None:
    found = class_of({"tokenflow_tpot_slo": seconds}, SHIPPED_CLASSES)
    assert found == QosClass("custom", rate, tpot_slo=float(seconds))


@pytest.mark.parametrize("value", [1, 0, "true", None, [True], 0.5])
def test_a_deposit_is_on_or_off(value) -> None:
    assert class_of({"tokenflow_deposit": True}, SHIPPED_CLASSES).deposit is True
    assert refusal({"tokenflow_deposit": value}) == (
        f"tokenflow_deposit is {value!r}; it must be true or false."
    )


def test_a_deposit_delivers_at_the_objective_or_as_fast_as_is_read() -> None:
    on = {"tokenflow_deposit": True, RATE_KEY: 20}
    assert class_of(on, SHIPPED_CLASSES).interval == 0.05
    assert class_of({**on, "tokenflow_tbt_slo": 0.2}, SHIPPED_CLASSES).interval == 0.2


def test_what_is_delivered_slowly_is_read_slowly() -> None:
    on = {"tokenflow_deposit": True, RATE_KEY: 20}
    assert class_of({**on, "tokenflow_tbt_slo": 0.2}, SHIPPED_CLASSES).rate == 5.0
    assert class_of({**on, "tokenflow_tbt_slo": 0.02}, SHIPPED_CLASSES).rate == 20.0
    assert class_of({**on, "tokenflow_tbt_slo": 600}, SHIPPED_CLASSES).rate == LOWEST_RATE
    off = {RATE_KEY: 20, "tokenflow_tbt_slo": 0.2}
    assert class_of(off, SHIPPED_CLASSES).rate == 20.0


def test_a_server_may_have_deposits_for_all_that_are_read() -> None:
    server = dataclasses.replace(SHIPPED_CLASSES, deposit=True)
    assert class_of(None, server).deposit and class_of({RATE_KEY: 3}, server).deposit
    assert not class_of({"tokenflow_deposit": False}, server).deposit
    assert not class_of({CLASS_KEY: "agent"}, server).deposit
    assert class_of({CLASS_KEY: "agent", "tokenflow_deposit": True}, server).deposit
    even = QosClass("even", 10.0, deposit=True)
    known = dataclasses.replace(SHIPPED_CLASSES, known={"even": even})
    assert class_of({CLASS_KEY: "even"}, known).deposit
    assert not class_of(None, known).deposit


@pytest.mark.parametrize("value", [0, 0.0009, 600.1, -1, math.nan, math.inf, True, "3", None, [3]])
@pytest.mark.parametrize("key", [key for key, name in OBJECTIVE_KEYS.items() if name in SLOS])
def test_a_bad_objective(key, value) -> None:
    assert refusal({key: value}) == (
        f"{key} is {value!r}; it must be a number of seconds between 0.001 and 600."
    )


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, {}),
        ({"x-slo-ttft-ms": "3000"}, {"tokenflow_ttft_slo": 3.0}),
        (
            {"x-slo-tpot-ms": " 2e2 ", "x-slo-tbt-ms": "1500", "x-slo": "1"},
            {"tokenflow_tpot_slo": 0.2, "tokenflow_tbt_slo": 1.5},
        ),
        (
            {"x-llm-d-slo-ttft-ms": "3000", "x-llm-d-slo-tpot-ms": "200", "x-slo-tbt-ms": "1500"},
            {"tokenflow_ttft_slo": 3.0, "tokenflow_tpot_slo": 0.2, "tokenflow_tbt_slo": 1.5},
        ),
        # The new name holds, whatever the deprecated one says.
        ({"x-slo-ttft-ms": "9", "x-llm-d-slo-ttft-ms": "2000"}, {"tokenflow_ttft_slo": 2.0}),
        ({"x-llm-d-slo-tpot-ms": "50", "x-slo-tpot-ms": "soon"}, {"tokenflow_tpot_slo": 0.05}),
    ],
)
def test_objectives_of_headers(headers, found) -> None:
    assert objectives_of(headers) == found


@pytest.mark.parametrize("text", ["", "fast", "3 s", "0", "-5", "nan", "inf", "1e9"])
@pytest.mark.parametrize("name", ["x-slo-tpot-ms", "x-llm-d-slo-tpot-ms"])
def test_a_bad_header(name, text) -> None:
    with pytest.raises(RateError, match=f"^{name}"):
        objectives_of({name: text})


@pytest.mark.parametrize(
    "text",
    ["1_000", "infinity", "1e400", "\u0661\u0660", "0x10", "+5", ".5", "5.", "\u00a05", "5\n"],
)
def test_a_header_is_a_decimal_number_and_is_named_as_it_was_sent(text) -> None:
    with pytest.raises(RateError) as caught:
        objectives_of({"x-slo-ttft-ms": text})
    assert str(caught.value) == f"x-slo-ttft-ms is {text!r}; it must be a number of milliseconds."


def test_what_the_body_states_goes_before_a_header() -> None:
    asked = {"tokenflow_ttft_slo": 3.0, "tokenflow_tpot_slo": 0.2}
    own = {"custom_params": {"tokenflow_ttft_slo": 1, "mine": 2}, "max_new_tokens": 5}
    both = {"tokenflow_ttft_slo": 1, "mine": 2, "tokenflow_tpot_slo": 0.2}
    expected = {"custom_params": both, "max_new_tokens": 5}
    assert add_to_sampling([own, None], asked) == [expected, {"custom_params": asked}]
    assert add_to_sampling(own, {}) is own
    assert add_to_sampling({"custom_params": "no mapping"}, asked) == {
        "custom_params": "no mapping"
    }


def test_a_header_reaches_a_body_that_has_such_parameters() -> None:
    body = types.SimpleNamespace(custom_params=None)
    add_to_body(body, {"tokenflow_ttft_slo": 3.0})
    assert body.custom_params == {"tokenflow_ttft_slo": 3.0}
    other = types.SimpleNamespace(input="an embedding")
    add_to_body(other, {"tokenflow_ttft_slo": 3.0})
    assert vars(other) == {"input": "an embedding"}


def test_a_rate_and_a_class_exclude_each_other() -> None:
    assert refusal({RATE_KEY: 3, CLASS_KEY: "agent"}) == (
        "tokenflow_rate and tokenflow_class exclude each other; give one of them."
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("tokenflow_rte", RATE_KEY),
        ("tokenflow_rates", RATE_KEY),
        ("tokenflow_clas", CLASS_KEY),
        ("tokenflow-rate", RATE_KEY),
        ("Tokenflow_Rate", RATE_KEY),
        ("tokenflow_", RATE_KEY),
        ("tokenflow_" + "x" * 10_000, MAX_WAIT_KEY),
    ],
)
def test_an_unknown_key_of_ours_is_refused_with_the_nearest(key, meant) -> None:
    message = refusal({key: 20})
    assert message.endswith(f" in custom_params is unknown; the nearest key is {meant}.")
    assert len(message) < 180
    assert refusal({RATE_KEY: 20, key: 20}) == message


def test_other_keys_are_left_alone() -> None:
    params = {"flow_rate": 1, "tokenflow": 2, "my_tokenflow_rate": 3, 4: 5}
    assert class_of(params, SHIPPED_CLASSES).name == "default"


def test_a_key_of_ours_in_another_place_is_refused() -> None:
    check_place(["temperature", "top_p", "tokenflow"], "sampling_params")
    for key in (RATE_KEY, "tokenflow_rte"):
        with pytest.raises(RateError) as caught:
            check_place(["temperature", key], "sampling_params")
        assert str(caught.value) == (
            f"{key!r} stands in sampling_params, where it says nothing; give tokenflow_rate in "
            "custom_params."
        )


@pytest.mark.parametrize(
    "bad", [-1, -0.5, 0, 0.0, 0.0999, 1000.1, 1e9, 10**9, math.nan, math.inf, -math.inf, 10**30]
)
def test_a_number_out_of_range_is_refused(bad) -> None:
    assert refusal({RATE_KEY: bad}) == (
        f"tokenflow_rate is {bad!r}; it must be between 0.1 and 1000 tokens per second."
    )


@pytest.mark.parametrize(
    "bad", ["20", "fast", "", True, False, None, {"rate": {"a": 20}}, [20], [[20], {}], b"20", 20j]
)
def test_what_is_no_number_is_refused(bad) -> None:
    assert refusal({RATE_KEY: bad}) == (
        f"tokenflow_rate is {bad!r}; it must be a number of tokens per second between 0.1 and 1000."
    )


@pytest.mark.parametrize(
    "bad", ["speed-reading", "", "Reading", 5, None, True, ["agent"], {"a": 1}]
)
def test_an_unknown_class_is_refused(bad) -> None:
    assert refusal({CLASS_KEY: bad}) == (
        f"tokenflow_class is {bad!r}; known classes are agent, listening, reading."
    )


def test_long_values_are_cut_in_the_sentence() -> None:
    for params in ({RATE_KEY: "x" * 10_000}, {CLASS_KEY: ["x"] * 10_000}):
        message = refusal(params)
        assert "..." in message
        assert len(message) < 180


@pytest.mark.parametrize("bad", [10**309, -(10**400)], ids=["above", "below"])
def test_an_integer_beyond_every_float_is_refused(bad) -> None:
    refusal({RATE_KEY: bad})


def test_a_long_number_is_cut_in_the_sentence() -> None:
    assert len(refusal({RATE_KEY: 10**300})) < 180


# Any JSON value except integers beyond every float, see above.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(rate=JSON, named=JSON)
def test_any_json_is_a_rate_within_range_or_an_error_for_the_client(rate, named) -> None:
    for params in ({RATE_KEY: rate}, {CLASS_KEY: named}, rate):
        try:
            found = class_of(params, SHIPPED_CLASSES)
        except RateError:
            continue
        assert LOWEST_RATE <= found.rate <= HIGHEST_RATE


def test_an_operators_own_class() -> None:
    subtitles = QosClass("subtitles", 15.0, tolerance=1.0, weight=2.0)
    known = QosClasses({**SHIPPED, "subtitles": subtitles}, SHIPPED["reading"])
    assert class_of({CLASS_KEY: "subtitles"}, known) == subtitles
    assert class_of(None, known.with_default("subtitles")) == QosClass(
        "default", 15.0, tolerance=1.0, weight=2.0
    )
