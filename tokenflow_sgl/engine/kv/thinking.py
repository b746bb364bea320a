"""SGLang's --strip-thinking-cache beside pauses: what a request owns of its KV row.

With that option SGLang says of a request that has reasoned, running or finished, that it owns its
prompt's KV only, so that thinking and answer are freed at its end instead of being cached. Two
things go wrong where KV of a running stream is published to the prefix tree (to pause it, to write
it to the host, or by SGLang's own prefill after a retraction): a paused stream would lose all it
has computed, and a finished one would take back less than the tree was given, which SGLang's
assertions end the server for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenflow_sgl.engine.sglang.request import Req


def owned_kv_len(original: Callable[[Any], int], req: Req) -> int:
    """Around Req.owned_kv_len: tokens from the row's start that the request owns.

    A request that has not finished owns all that it has computed: it will need it. One that has
    finished owns what SGLang says, or what the tree has of it, if more: that is evicted like any
    other cached text; the rest is freed.
    """
    if not req.finished():
        return int(req.kv.kv_committed_len)
    return max(original(req), int(req.kv.cache_protected_len))
