"""The token deposit: the front end itself delivers one token per interval.

A client without a buffer of its own gets an even stream, however fast and unevenly the engine
generates. What is generated early waits here; `placement.deposit` says for how long. The rest goes
out when the answer is complete, so nothing outlives the request.

Each stream has its deposit around SGLang's waiter for it, where every choice of a request with
`n` above 1 has one of its own. To the scheduler what waits here is sent: the reader gets it in
time. So nothing has to be said of it, and a pause fills the deposit with what SGLang's stream
interval held back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any
from weakref import WeakValueDictionary

from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager import _INCREMENTAL_STREAMING_META_INFO_KEYS
from sglang.srt.platforms import current_platform

from tokenflow_sgl.engine.config import HIDDEN, TokenFlowConfig, config_of
from tokenflow_sgl.engine.frontend.deposited_stream import DepositedStream
from tokenflow_sgl.engine.frontend.held_gauge import gauge_of
from tokenflow_sgl.engine.frontend.held_output import Chunk, HeldOutput
from tokenflow_sgl.engine.frontend.sibling_workers import siblings_of
from tokenflow_sgl.engine.frontend.token_texts import TokenTexts
from tokenflow_sgl.engine.sglang.server import AskedFor, Manager
from tokenflow_sgl.engine.terms import class_of
from tokenflow_sgl.engine.unsupported import has_workers

_streams = WeakValueDictionary[str, DepositedStream]()
"""Those of this process that are being delivered, by request id."""


def deliver_evenly(
    original: Callable[..., AsyncGenerator[Chunk, None]],
    manager: Manager,
    obj: AskedFor,
    *args: Any,
    **kw: Any,
) -> AsyncGenerator[Chunk, None]:
    """Deliver a stream evenly, from its deposit; around TokenizerManager._wait_one_response."""
    chunks = original(manager, obj, *args, **kw)
    config = config_of(manager.server_args)
    if config is None:
        return chunks
    gauge = gauge_of(manager)  # on the page from the first request on, whether it has a deposit
    interval = interval_of(obj, config)
    if interval is None:
        return chunks
    state = manager.rid_to_state[obj.rid]
    incremental = bool(manager.incremental_streaming_output)
    output = HeldOutput(
        TokenTexts(manager.tokenizer, obj.sampling_params),
        lambda: (*_INCREMENTAL_STREAMING_META_INFO_KEYS, *state.customized_info_accumulated),
        incremental=incremental,
    )
    stream = DepositedStream(
        output,
        interval,
        gauge,
        hidden=config.thinking == HIDDEN,
        longest_rest=config.longest_rest,
    )
    _streams[obj.rid] = stream
    if has_workers(manager.server_args):
        siblings_of(manager).listen(read_at)
    return stream.delivered(chunks)


def interval_of(obj: AskedFor, config: TokenFlowConfig) -> float | None:
    """Seconds between two tokens of a request for which SGLang waits; None: it has no deposit.

    Answers with a record for each forward pass cannot be cut. On a virtual clock there is no
    waiting: tokens come with their moments instead.
    """
    if not isinstance(obj, GenerateReqInput) or not obj.stream:
        return None
    if obj.return_hidden_states or obj.return_routed_experts or obj.return_indexer_topk:
        return None
    if getattr(current_platform, "virtual_time", False):
        return None
    asked = class_of((obj.sampling_params or {}).get("custom_params"), config.known_classes)
    return asked.interval if asked.deposit else None


def read_at(rid: str, rate: float) -> None:
    """The reader of a stream reads so many tokens per second from now on; 0: none.

    A stream that has no deposit in this process is left alone.
    """
    if (stream := _streams.get(rid)) is not None:
        stream.read_at(rate)


def unseen(rid: str) -> None:
    """What a stream's client was sent last had no text: a token without one takes no interval."""
    if (stream := _streams.get(rid)) is not None:
        stream.unseen()
