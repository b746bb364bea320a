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
