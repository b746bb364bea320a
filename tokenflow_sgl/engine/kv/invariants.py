"""Lets SGLang's own memory checks see the rows that draining requests still hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sglang.srt.managers.scheduler_components.invariant_checker import SchedulerInvariantChecker


def checker_with_draining(
    checker: SchedulerInvariantChecker, draining: Callable[[], list[Any]]
) -> SchedulerInvariantChecker:
    """`checker` rebuilt so that it counts the requests that `draining()` returns, too."""

    class DrainingAwareChecker(SchedulerInvariantChecker):  # type: ignore[misc]
        def _requests_owning_rows(self) -> list[Any]:
            owners: list[Any] = super()._requests_owning_rows()
            known = {id(req) for req in owners}
            return owners + [req for req in draining() if req.kv.holds_kv and id(req) not in known]

    return DrainingAwareChecker(
        **{f.name: getattr(checker, f.name) for f in dataclasses.fields(checker) if f.init}
    )
