"""SGLang's objects as far as ours look at them, without SGLang.

Each has what the engine reads or calls. What a test needs beyond that it gives by keyword or sets:
it stands for the attribute of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class TimeStats:
    """A request's time stamps, which are kept nowhere, and its trace, of which none is made."""

    wait_queue_entry_time = forward_entry_time = 0.0

    def __init__(self) -> None:
        self.trace_ctx = SimpleNamespace(
            abort=lambda abort_info: None, trace_event=lambda *_, **__: None
        )

    def set_wait_queue_entry_time(self) -> None: ...

    def set_retract_time(self) -> None: ...

    def set_completion_time(self) -> None: ...


class Request:
    """A request that runs, with the row `row` and the KV of all of its tokens.

    Args:
        rid: Its id.
        prompt: Tokens of its prompt.
        made: Tokens of its output so far, all of them sent.
        row: Of SGLang's table of rows.
        more: Other attributes, or others of these.
    """

    skip_radix_cache_insert = return_logprob = stream = False
    return_hidden_states = return_routed_experts = return_indexer_topk = False
    return_sampling_mask = require_reasoning = False
    beam_group: Any = None
    session: Any = None
    input_embeds: Any = None
    positional_embed_overrides: Any = None
    extra_key: str | None = None
    cache_salt: str | None = None
    multimodal_inputs: Any = None
    lora_id: str | None = None
    to_finish: Any = None
    finished_reason: Any = None
    prefix_len = extend_end = priority = reasoning_tokens = 0
    retraction_count = 0
    held_back = 0
    """Tokens of the output that are not sent yet."""

    def __init__(
        self, rid: str = "r", prompt: int = 15, made: int = 5, row: int = 1, **more: Any
    ) -> None:
        self.rid = rid
        self.origin_input_ids: Sequence[int] = [1] * prompt
        self.output_ids: list[int] = [1] * made
        self.kv: Any = SimpleNamespace(
            holds_kv=True,
            holds_mamba=False,
            kv_allocated_len=prompt + made,
            req_pool_idx=row,
            cache_protected_len=0,
            retraction_backup=None,
        )
        self.sampling_params: Any = SimpleNamespace(
            custom_params=None, max_new_tokens=99, stream_interval=8
        )
        self.time_stats: Any = TimeStats()
        for name, value in more.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Request({self.rid!r})"

    @property
    def seqlen(self) -> int:
        return len(self.origin_input_ids) + len(self.output_ids)

    @property
    def send_token_offset(self) -> int:
        return len(self.output_ids) - self.held_back

    def finished(self) -> bool:
        return self.finished_reason is not None

    def produce(self, count: int, held_back: int = 0) -> None:
        """So many tokens more, of which all but `held_back` are sent."""
        self.output_ids.extend(range(count))
        self.held_back = held_back

    def owned_kv_len(self) -> int:
        return int(self.kv.kv_allocated_len)

    def refresh_fill_ids(self) -> None:
        """Nothing here has a copy of the ids."""

    def reset_for_retract(self) -> None:
        assert not self.kv.holds_kv, "SGLang takes its row back before"
        self.retraction_count += 1

    def update_finish_state(self, _tokens: int) -> None:
        self.finished_reason = self.to_finish

    def set_finish_with_abort(self, message: str) -> None:
        self.to_finish = message


class Batch:
    """A batch that runs, or one whose result is in flight."""

    return_logprob = False

    def __init__(self, *requests: Any, fits: bool = True) -> None:
        self.reqs = list(requests)
        self.batch_is_full = True
        self.fits = fits

    def is_empty(self) -> bool:
        return not self.reqs

    def check_decode_mem(self) -> bool:
        return self.fits

    def filter_batch(self, reqs_to_exclude: Sequence[Any] = ()) -> None:
        self.reqs = [req for req in self.reqs if req not in reqs_to_exclude]


class Tree:
    """A prefix tree that has nothing in it, on a server without HiCache.

    Args:
        evictable: Tokens that no running stream locks.
        more: Other attributes, or others of these.
    """

    cache_controller: Any = None

    def __init__(self, evictable: int = 0, **more: Any) -> None:
        self.evictable = evictable
        self.ongoing_write_through: dict[Any, Any] = {}
        self.ongoing_load_back: dict[Any, Any] = {}
        for name, value in more.items():
            setattr(self, name, value)

    def supports_swa(self) -> bool:
        return False

    def supports_mamba(self) -> bool:
        return False

    def supports_prefix_sharing(self) -> bool:
        return True

    def evictable_size(self) -> int:
        return self.evictable


class Allocator:
    """The device's memory for KV, of which so many tokens are free."""

    def __init__(self, free: Callable[[], int], pool: Any = None) -> None:
        self.available_size = free
        self.pool = pool

    def get_kvcache(self) -> Any:
        return self.pool


class Arrivals:
    """A decode server's queue of requests that wait for memory there.

    Attributes:
        polls: How often it was told to look which of them have become ready.
        fits: Whether there is memory for what was retracted.
    """

    def __init__(self, *requests: Any) -> None:
        self.queue: list[Any] = []
        self.held_rebootstrap_reqs: list[Any] = []
        self.retracted_queue: list[Any] = []
        self.num_reserved_decode_tokens = 512
        self.polls = 0
        self.fits = True
        for request in requests:
            self.add(request)

    def add(self, request: Any, is_retracted: bool = False) -> None:
        self.queue.append(SimpleNamespace(req=request, waiting_for_input=True))

    def remove(self, request: Any) -> None:
        self.queue = [each for each in self.queue if each.req is not request]

    def hold_rebootstrap(self, request: Any) -> None:
        self.held_rebootstrap_reqs.append(request)

    def resume_retracted_reqs(self) -> list[Any]:
        return self.retracted_queue if self.fits else []

    def _resolve_pending_reqs(self) -> None:
        self.polls += 1

    def _update_handshake_waiters(self) -> None:
        """No server is asked here."""

    @property
    def names(self) -> list[str]:
        return [each.req.rid for each in self.queue]


class Streamer:
    """What sends output to the front end.

    Attributes:
        sent: Ids and output of what was sent.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int]]] = []

    def stream_output(self, requests: Sequence[Any], _return_logprob: bool) -> None:
        self.sent.extend((req.rid, list(req.output_ids)) for req in requests)


class Scheduler(SimpleNamespace):
    """A scheduler in which nothing waits and nothing runs.

    Args:
        free: KV tokens that are free on the device.
        more: Other attributes, or others of these.
    """

    def __init__(self, free: Callable[[], int] = lambda: 0, **more: Any) -> None:
        super().__init__(**parts(free, **more))


def parts(free: Callable[[], int] = lambda: 0, **more: Any) -> dict[str, Any]:
    """The attributes of such a scheduler, by name."""
    return {
        "beam_coordinator": SimpleNamespace(retire_group=lambda req: None),
        "chunked_prefill_size": None,
        "chunked_req": None,
        "device": "cpu",
        "enable_hierarchical_cache": False,
        "enable_overlap": True,
        "enable_priority_scheduling": False,
        "grammar_manager": SimpleNamespace(grammar_queue=[], abort_requests=lambda named: None),
        "is_mixed_chunk": False,
        "last_batch": None,
        "max_running_requests": 64,
        "max_total_num_tokens": 1000,
        "model_config": SimpleNamespace(num_hidden_layers=4),
        "output_streamer": Streamer(),
        "page_size": 1,
        "result_queue": [],
        "running_batch": Batch(),
        "server_args": SimpleNamespace(smg_grpc_mode=False, grpc_mode=False),
        "spec_algorithm": SimpleNamespace(is_none=lambda: True),
        "token_to_kv_pool_allocator": Allocator(free),
        "tp_worker": SimpleNamespace(model_runner=SimpleNamespace(attn_backend=None)),
        "tree_cache": Tree(),
        "truncation_align_size": None,
        "waiting_queue": [],
        "_prefetch_kvcache": lambda req: None,
        **more,
    }
