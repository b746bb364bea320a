"""The kinds of errors that a user can do something about; each message is one sentence.

`tokenflow_sgl.cli.failing` makes an exit code of the kind, the same in every command.
"""

from __future__ import annotations


class InputError(ValueError):
    """What was given cannot be used: a value, a file, a place to write to."""


class FailedError(RuntimeError):
    """What was given is fine, but what was asked for failed: no server, one that ended."""


class StoppedError(RuntimeError):
    """The user ended the work before it had a result."""


_MOST_SHOWN = 60
"""Characters of a value that a sentence has room for."""
_MOST_BITS = 200


def shown(value: object) -> str:
    """A value that somebody else gave, as Python writes it and short enough for a sentence.

    Never raises: Python refuses to write integers of more than 4,300 digits, which hexadecimal
    notation gets past its reader, and what is nested as deeply as a parser just takes.
    """
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "a huge integer"
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return "a value that is too large to be shown"
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
