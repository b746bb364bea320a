"""What SGLang reports of its load in /v1/loads, with paused streams.

SGLang reports the requests that run and those in its waiting queue. Paused streams are in neither;
a router that does not see them sends its next requests to the busiest server. A router that takes
them for waiting ones, or a memory that is full on purpose for a full server, sends it none. So they
are in no gauge of SGLang's either, nor in its log lines: `tokenflow:paused_streams` has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from sglang.srt.managers.load_snapshot import LoadSnapshot
from sglang.srt.managers.scheduler_components.load_inquirer import SchedulerLoadInquirer

from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.loads import LoadWithHeadroom

Requests = Callable[[], Collection[Any]]


def inquirer_with_paused(
    inquirer: SchedulerLoadInquirer,
    waiting: Requests,
    paused: Requests,
    watch: HeadroomWatch,
    full: Callable[[], list[str] | None],
) -> SchedulerLoadInquirer:
    """`inquirer` rebuilt so that /v1/loads counts paused streams as running, with their tokens.

    They are being served: their readers have text. Only who has no first token yet waits.

    Args:
        inquirer: SGLang's.
        waiting: SGLang's queue, whole at any time.
        paused: Paused streams. Their KV is kept, so they add nothing to the tokens that wait for a
            prefill.
        watch: Knows headroom, and how long newcomers would wait. The share that is promised is the
            token usage that gateways go by: KV of streams that can be paused is no reason to send
            no more.
        full: Tenants that have as many streams as they may; None: they are not told apart.
    """

    @checked
    class PausedAwareInquirer(SchedulerLoadInquirer):  # type: ignore[misc]
        @overrides("paused streams in /v1/loads")
        def get_loads(self) -> LoadSnapshot:
            loads: Any = super().get_loads()
            held = paused()
            tokens = sum(req.seqlen for req in held)
            queues = msgspec.structs.replace(loads.queues, paused=loads.queues.paused + len(held))
            share, wait = watch.promised, watch.wait
            changed = {
                "num_running_reqs": loads.num_running_reqs + len(held),
                "token_usage": loads.token_usage if share is None else round(share, 4),
                "num_total_tokens": loads.num_total_tokens + tokens,
                "num_active_tokens": loads.num_active_tokens + tokens,
                "queues": queues,
                "tokenflow_headroom_tokens": watch.tokens,
                "tokenflow_expected_wait_s": None if wait is None else round(wait, 2),
                "tokenflow_outlook": watch.published,
                "tokenflow_full": full(),
            }
            reported = {name: getattr(loads, name) for name in loads.__struct_fields__}
            return LoadWithHeadroom(**{**reported, **changed})

    fields = {f.name: getattr(inquirer, f.name) for f in dataclasses.fields(inquirer)}
    return PausedAwareInquirer(**{**fields, "get_waiting_queue": waiting})
