"""Objectives that come as HTTP headers, as inference gateways send them.

llm-d names them `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms`; `x-slo-ttft-ms` and
`x-slo-tpot-ms` are what it and the Gateway API Inference Extension called them before, and
`x-slo-tbt-ms` is the same for the longest time between two tokens. Of two names for one objective
the new one holds, as it does in llm-d. They become keys of `custom_params`, in seconds: from there
on it makes no difference where an objective stood. What a body states goes before a header, which a
gateway may set for all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tokenflow_sgl.engine.terms import OBJECTIVE_KEYS, RateError, check_objective
from tokenflow_sgl.errors import shown
from tokenflow_sgl.qos.classes import SLOS

RENAMED = ("ttft", "tpot")
"""Objectives that have a name of llm-d's."""


def _names(key: str) -> tuple[str, ...]:
    objective = key.split("_")[1]
    old = f"x-slo-{objective}-ms"
    return (f"x-llm-d-slo-{objective}-ms", old) if objective in RENAMED else (old,)


HEADERS = {key: _names(key) for key, name in OBJECTIVE_KEYS.items() if name in SLOS}
"""Key of custom_params to its headers; the first one that a request has holds."""
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A decimal number as JSON has it. Python's own reader takes more: 1_000, infinity, digits of other
scripts. A number below 0 is one, though none that is allowed."""


def objectives_of(headers: Mapping[str, str]) -> dict[str, float]:
    """The keys of custom_params that the headers of a request ask for.

    Args:
        headers: Of a request; names are looked up in small letters, as Starlette's know them.

    Raises:
        RateError: A value is no number of milliseconds, or none that is allowed.
    """
    found = {}
    for key, names in HEADERS.items():
        said = ((name, headers.get(name)) for name in names)
        header, text = next((each for each in said if each[1] is not None), ("", None))
        if text is None:
            continue
        number = text.strip(" \t")  # which are no part of a header's value
        if not _DECIMAL.fullmatch(number) or not math.isfinite(milliseconds := float(number)):
            raise RateError(f"{header} is {shown(text)}; it must be a number of milliseconds.")
        found[key] = check_objective(milliseconds / 1000.0, f"{header} / 1000")
    return found


def add_to_sampling(params: Any, asked: Mapping[str, float]) -> Any:
    """Sampling parameters of /generate, a mapping or a list of them, with these objectives."""
    if isinstance(params, list):
        return [add_to_sampling(each, asked) for each in params]
    params = {} if params is None else params
    if not asked or not isinstance(params, dict):
        return params
    return {**params, "custom_params": _with(params.get("custom_params"), asked)}


def add_to_body(body: Any, asked: Mapping[str, float]) -> None:
    """Add objectives in headers to a body of OpenAI's routes that has `custom_params`."""
    if asked and hasattr(body, "custom_params"):
        body.custom_params = _with(body.custom_params, asked)


def _with(custom_params: Any, asked: Mapping[str, float]) -> Any:
    if custom_params is None:
        return dict(asked)
    # What is no mapping says nothing to us, and is SGLang's to judge.
    return {**asked, **custom_params} if isinstance(custom_params, Mapping) else custom_params
