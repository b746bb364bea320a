"""What an error says of a file: no words of it, which may be somebody's, only numbers and times."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

_LONGEST = 60  # characters of a bad value
_NUMERIC = re.compile(r"[-+]?(nan|inf|infinity)|[-+\d.,:_/ ]*([eET][-+\d.,:_]*)?Z?", re.IGNORECASE)
_SHORT_NAME = re.compile(r"\w{1,24}", re.ASCII)


def name_of(column: str, known: Sequence[str]) -> str:
    """How an error calls a column that has no place here.

    By its name if that is `known` elsewhere, or a slip of the pen.
    """
    if column in known:
        return column
    slip = _SHORT_NAME.fullmatch(column) and difflib.get_close_matches(column, known, 1, 0.7)
    return f"{column} (is {slip[0]} meant?)" if slip else "that is not known"


def shown(value: object) -> str:
    """A bad value, with nothing of what it says in words."""
    if isinstance(value, list) and not all(type(each) in (int, float) for each in value):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, str) and not _NUMERIC.fullmatch(value):
        return f"a text of {len(value)} character{'' if len(value) == 1 else 's'}"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
