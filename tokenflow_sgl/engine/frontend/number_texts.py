"""Numbers in a JSON body that no float holds, so that a refusal can name what was sent.

SGLang's parser says of `{"rate": 1e400}` only that the body is no JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

_MOST_DIGITS = 300
"""Longer integers are beyond all floats; those of more than 4,300 digits Python does not read."""


class _Unheld(float):
    """A number beyond what a float holds: infinite, and shown as it was sent."""

    def __new__(cls, text: str) -> _Unheld:
        made = super().__new__(cls, -math.inf if text.startswith("-") else math.inf)
        made._text = text
        return made

    _text: str

    def __repr__(self) -> str:
        return self._text


def _float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _Unheld(text)


def _int(text: str) -> int | float:
    return int(text) if len(text) <= _MOST_DIGITS else _Unheld(text)


def json_of_any_numbers(body: bytes) -> Any:
    """What a body says, whatever the size of its numbers.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(body, parse_float=_float, parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None
