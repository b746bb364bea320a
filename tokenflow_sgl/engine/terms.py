"""How a request's text is read: at a rate of its own, as a named class, or as the default.

A client sends `custom_params: {"tokenflow_rate": 20}` (tokens per second) or
`{"tokenflow_class": "listening"}`. With either, or alone, it can state objectives in seconds:
`{"tokenflow_ttft_slo": 3, "tokenflow_tbt_slo": 1, "tokenflow_tpot_slo": 0.2}`, or when the whole
answer is wanted, `{"tokenflow_deadline": 20}` (policy/deadlines.py). A time per token without a
rate or a class is a rate: the answer is read that fast. `{"tokenflow_deposit": true}` lets the
server deliver one token per interval (token_deposit.py), and `{"tokenflow_max_wait": 2}` refuses
the request if its first token is expected later than that (front_door.py). Keys that begin with
`tokenflow_` are ours, so one that is none of these is a mistake that the client hears of.
Everything else in `custom_params` is left alone.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from tokenflow_sgl.errors import shown
from tokenflow_sgl.qos.classes import (
    BY_DEADLINE,
    DEADLINE,
    LEAST_WEIGHT,
    LONGEST_DEADLINE,
    LONGEST_MAX_WAIT,
    LONGEST_SLO,
    MOST_WEIGHT,
    OBJECTIVES,
    OWN_RATE,
    SHORTEST_SLO,
    QosClass,
    QosClasses,
)
from tokenflow_sgl.qos.reader import HIGHEST_RATE, LOWEST_RATE

RATE_KEY = "tokenflow_rate"
CLASS_KEY = "tokenflow_class"
DEPOSIT_KEY = "tokenflow_deposit"
MAX_WAIT_KEY = "tokenflow_max_wait"
PREFIX = "tokenflow_"
OBJECTIVE_KEYS = {f"{PREFIX}{name}": name for name in OBJECTIVES}
"""Keys of objectives, and their names in a class."""
TPOT_KEY = f"{PREFIX}tpot_slo"
DEADLINE_KEY = f"{PREFIX}{DEADLINE}"
DEADLINE_AT_KEY = f"{DEADLINE_KEY}_at"
KEYS = (RATE_KEY, CLASS_KEY, *OBJECTIVE_KEYS, DEPOSIT_KEY, MAX_WAIT_KEY, DEADLINE_AT_KEY)
LAST_MOMENT = 1e11
"""Seconds of Unix time that no clock comes to: what is above was meant in another unit."""
TENANT_KEY = "tokenflow_tenant"
"""Of who asks: the front end's own, which no client may give."""
NOT_STREAMED = QosClass("not-streamed", HIGHEST_RATE, reader=False)
"""Class of requests that do not stream: no reader follows them, and their rate is not asked for:
the sooner the whole answer is there, the better. No class of a file can be called so."""


class RateError(ValueError):
    """A rate, class or weight cannot be used; the message is one sentence for the client."""


def check_rate(value: Any, name: str = RATE_KEY) -> float:
    """`value` as a rate in tokens per second; raises `RateError` if it is none."""
    unit, between = "tokens per second", f"between {LOWEST_RATE:g} and {HIGHEST_RATE:g}"
    number = _number(name, value, f"a number of {unit} {between}")
    # Compared before it is converted: an int may be too large for a float, and NaN fails.
    if not LOWEST_RATE <= number <= HIGHEST_RATE:
        raise RateError(f"{name} is {shown(value)}; it must be {between} {unit}.")
    return float(number)


def check_objective(value: Any, name: str) -> float:
    """`value` as an objective in seconds; raises `RateError` if it is none."""
    longest = LONGEST_DEADLINE if name == DEADLINE_KEY else LONGEST_SLO
    allowed = f"a number of seconds between {SHORTEST_SLO:g} and {longest:g}"
    number = _number(name, value, allowed)
    if not SHORTEST_SLO <= number <= longest:
        raise RateError(f"{name} is {shown(value)}; it must be {allowed}.")
    return float(number)


def check_weight(value: Any, name: str) -> float:
    """`value` as a weight, within the bounds of a class's; raises `RateError` if it is none."""
    allowed = f"a number between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}"
    number = _number(name, value, allowed)
    if not LEAST_WEIGHT <= number <= MOST_WEIGHT:
        raise RateError(f"{name} is {shown(value)}; it must be {allowed}.")
    return float(number)


def check_deposit(value: Any) -> bool:
    """Whether a stream is to have a token deposit; raises `RateError` for what is no boolean."""
    if not isinstance(value, bool):
        raise RateError(f"{DEPOSIT_KEY} is {shown(value)}; it must be true or false.")
    return value


def check_max_wait(value: Any) -> float:
    """`value` as the seconds that a request may wait; raises `RateError` if it is none."""
    allowed = f"a number of seconds from 0 (as long as it takes) to {LONGEST_MAX_WAIT:g}"
    number = _number(MAX_WAIT_KEY, value, allowed)
    if not 0.0 <= number <= LONGEST_MAX_WAIT:
        raise RateError(f"{MAX_WAIT_KEY} is {shown(value)}; it must be {allowed}.")
    return float(number)


def check_deadline_at(value: Any) -> float:
    """`value` as a moment of Unix time in seconds; raises `RateError` if it is none."""
    allowed = "Unix time in seconds, a number above 0"
    number = _number(DEADLINE_AT_KEY, value, allowed)
    if not 0.0 < number < LAST_MOMENT:
        raise RateError(f"{DEADLINE_AT_KEY} is {shown(value)}; it must be {allowed}.")
    return float(number)


def _number(name: str, value: Any, allowed: str) -> int | float:
    # bool is an int to Python, but no client means a number by it.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RateError(f"{name} is {shown(value)}; it must be {allowed}.")
    return value


def class_of(custom_params: Any, classes: QosClasses) -> QosClass:
    """The class that a request's `custom_params` ask for.

    It is called "custom" for a rate of its own and "default" where no rate and no class is stated.
    Raises `RateError` for a bad rate, objective or switch, an unknown class, a rate and a class at
    once, or an unknown key.
    """
    if not isinstance(custom_params, Mapping):
        custom_params = {}
    check_keys(custom_params)
    if DEADLINE_AT_KEY in custom_params:
        raise RateError(
            f"{DEADLINE_AT_KEY} is read in SGLang's HTTP server in Python, which does not run; "
            f"give {DEADLINE_KEY}."
        )
    asked: dict[str, Any] = {
        name: check_objective(custom_params[key], key)
        for key, name in OBJECTIVE_KEYS.items()
        if key in custom_params
    }
    reading = _reading(custom_params, classes)
    deposit = reading.deposit or (classes.deposit and reading.reader)
    asked["deposit"] = check_deposit(custom_params.get(DEPOSIT_KEY, deposit))
    if MAX_WAIT_KEY in custom_params:
        asked["max_wait"] = check_max_wait(custom_params[MAX_WAIT_KEY])
    return dataclasses.replace(reading, **asked).paced


def _reading(custom_params: Mapping[Any, Any], classes: QosClasses) -> QosClass:
    """The class without the objectives of the request itself."""
    if RATE_KEY in custom_params:
        if CLASS_KEY in custom_params:
            raise RateError(f"{RATE_KEY} and {CLASS_KEY} exclude each other; give one of them.")
        return QosClass(OWN_RATE, check_rate(custom_params[RATE_KEY]))
    if CLASS_KEY in custom_params:
        name = custom_params[CLASS_KEY]
        if not isinstance(name, str) or name not in classes.known:
            raise RateError(
                f"{CLASS_KEY} is {shown(name)}; known classes are "
                f"{', '.join(sorted(classes.known))}."
            )
        return classes.known[name]
    if TPOT_KEY in custom_params:
        return QosClass(OWN_RATE, max(1.0 / custom_params[TPOT_KEY], LOWEST_RATE))
    return BY_DEADLINE if DEADLINE_KEY in custom_params else classes.default


def check_keys(custom_params: Mapping[Any, Any]) -> None:
    """Raise `RateError` for a key that looks like ours and is none, and name the nearest."""
    for key in custom_params:
        if is_ours(key) and key not in KEYS and key != TENANT_KEY:
            raise RateError(
                f"{shown(key)} in custom_params is unknown; the nearest key is {_nearest(key)}."
            )


def check_own(custom_params: Any) -> None:
    """Raise `RateError` for a key that only the front end gives, in what a client has sent."""
    if isinstance(custom_params, Mapping) and TENANT_KEY in custom_params:
        raise RateError(
            f"{TENANT_KEY} is {shown(custom_params[TENANT_KEY])}; it must be left out: the server "
            "finds out by itself who asks."
        )


def check_place(fields: Iterable[Any], where: str) -> None:
    """Raise `RateError` for a key of ours outside of custom_params, where nothing reads it.

    where: what the fields are, for the sentence.
    """
    for key in fields:
        if is_ours(key):
            raise RateError(
                f"{shown(key)} stands in {where}, where it says nothing; give {_nearest(key)} in "
                "custom_params."
            )


def is_ours(key: Any) -> bool:
    """Whether a key is one of ours, or looks like one."""
    return isinstance(key, str) and _folded(key).startswith(PREFIX)


def _folded(key: str) -> str:
    """A key as it would be written with underscores and in small letters."""
    return key.lower().replace("-", "_")


def _nearest(key: str) -> str:
    """The key of ours that `key` is most like."""
    found = difflib.get_close_matches(_folded(key)[:60], KEYS, n=1, cutoff=0.0)
    return found[0]
