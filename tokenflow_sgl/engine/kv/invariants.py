"""SGLang's own memory checks: they see the rows of draining requests, and go page by page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sglang.srt.managers.scheduler_components.invariant_checker import SchedulerInvariantChecker

from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.request import Req


def checker_with_draining(
    checker: SchedulerInvariantChecker,
    draining: Callable[[], list[Req]],
    look: Callable[[list[Any]], None],
) -> SchedulerInvariantChecker:
    """`checker` rebuilt so that it counts the requests that `draining()` returns, too.

    Args:
        checker: SGLang's.
        draining: Requests with memory that are in no batch.
        look: Is told the requests that hold rows, where SGLang's strict check runs after a pass.
    """

    @checked
    class DrainingAwareChecker(SchedulerInvariantChecker):  # type: ignore[misc]
        @overrides("strict memory checks see draining rows")
        def _requests_owning_rows(self) -> list[Any]:
            owners: list[Any] = super()._requests_owning_rows()
            known = {id(req) for req in owners}
            return owners + [req for req in draining() if req.kv.holds_kv and id(req) not in known]

        @overrides("looks at every page after a pass")
        def self_check_during_busy(self) -> None:
            super().self_check_during_busy()
            look(self._requests_owning_rows())

    return DrainingAwareChecker(
        **{f.name: getattr(checker, f.name) for f in dataclasses.fields(checker) if f.init}
    )
