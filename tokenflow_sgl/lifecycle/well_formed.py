"""Whether what a policy has answered can be carried out: a class of one's own can say anything.

A decision that is carried out half-way cannot be taken back. So it is looked at before, and what is
no decision counts as a failure of the policy, like an error that it raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import numpy as np

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    Mode,
    Preempt,
    Prefill,
    Restore,
    Way,
    When,
    Write,
)

_INTS = (int, np.integer)
_ACTIONS: dict[str, tuple[type, dict[str, Any]]] = {
    "preempt": (Preempt, {"slot": _INTS, "cause": Cause}),
    "restore": (Restore, {"slot": _INTS, "way": Way, "when": When, "part": _INTS}),
    "write": (Write, {"slot": _INTS, "tokens": _INTS}),
}
"""By field of a decision: which actions it has, and of what types their fields are."""


def well_formed(answer: object) -> Decision:
    """The answer itself, if it is a decision with nothing in it but what the contract allows.

    Raises:
        TypeError: It is none, or a field is of another type; the message names it and its value.
        ValueError: A prefill would be limited to less than a token.
    """
    if not isinstance(answer, Decision):  # a branch without a return, say
        raise TypeError(f"decide() returned {answer!r}; it must return a Decision")
    if not isinstance(answer.mode, Mode):
        raise _wrong("mode", answer.mode, "a Mode")
    for name in ("admit", "run"):
        if not _are_slots(getattr(answer, name), (tuple, list)):
            raise _wrong(name, getattr(answer, name), "a tuple of slots, which are integers")
    if not _are_slots(answer.hidden, Set):
        raise _wrong("hidden", answer.hidden, "a frozenset of slots, which are integers")
    for name, (kind, fields) in _ACTIONS.items():
        actions = getattr(answer, name)
        if not isinstance(actions, tuple | list):
            raise _wrong(name, actions, f"a tuple of {kind.__name__}")
        for action in actions:
            if not isinstance(action, kind):
                raise _wrong(name, action, f"{kind.__name__}")
            for field, allowed in fields.items():
                if not isinstance(getattr(action, field), allowed):
                    says = "an integer" if allowed is _INTS else f"a {allowed.__name__}"
                    raise _wrong(name, action, f"{kind.__name__} whose {field} is {says}")
    _check_prefill(answer.prefill)
    return answer


def _are_slots(slots: Any, kind: Any) -> bool:
    return isinstance(slots, kind) and all(issubclass(each, _INTS) for each in _types_in(slots))


def _types_in(slots: Iterable[object]) -> set[type]:
    # One by one they would take several times as long, and a pass may run hundreds.
    return set(map(type, slots))


def _check_prefill(prefill: object) -> None:
    if not isinstance(prefill, Prefill):
        raise _wrong("prefill", prefill, "a Prefill")
    limit = prefill.limit
    if limit is None:
        return
    if not isinstance(limit, _INTS):
        raise _wrong("prefill", prefill, "a limit in whole tokens, or None")
    if limit < 1:
        raise ValueError(f"decide() returned {prefill!r} in prefill; allowed is a limit from 1 on")


def _wrong(field: str, value: object, allowed: str) -> TypeError:
    return TypeError(f"decide() returned {value!r} in {field}; allowed is {allowed}")
