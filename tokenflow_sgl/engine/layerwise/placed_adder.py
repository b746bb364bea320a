"""SGLang's admission of prompts where the policy decides over KV that is placed layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

from tokenflow_sgl.engine.prefill_adder import AdmissionLimits, adder_class
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.request import Req


def placed_adder_class(
    limits: AdmissionLimits, free: Callable[[], int], shared: Callable[[Any], int]
) -> type[PrefillAdder]:
    """An adder that follows `limits` and the device's memory, of which SGLang has pages beyond.

    Args:
        limits: Of the policy.
        free: KV tokens of the device that no running stream has, nor the rest of a prompt under
            way.
        shared: Those of a request that a running stream has.
    """
    need_based: type[PrefillAdder] = adder_class(limits)

    @checked
    class PlacedAdder(need_based):  # type: ignore[misc]
        @overrides("what the device has left for this pass")
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._left = free() if limits.active else 0

        @overrides("admits by the device's memory, not by SGLang's pages")
        def add_one_req(self, req: Req, *args: Any, **kwargs: Any) -> Any:
            if not limits.active:
                return super().add_one_req(req, *args, **kwargs)
            wanted = len(req.origin_input_ids) + len(req.output_ids) + limits.growth.headroom
            wanted -= shared(req)
            batch = self.running_batch
            # Alone it may have more than the device: its layers leave while it is computed.
            others = self.can_run_list or (batch is not None and batch.reqs)
            if wanted > self._left and others:
                return AddReqResult.NO_TOKEN
            taken = len(self.can_run_list)
            result = super().add_one_req(req, *args, **kwargs)
            if len(self.can_run_list) > taken:
                self._left -= wanted
            return result

    return PlacedAdder
