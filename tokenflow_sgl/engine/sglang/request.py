"""What is used of a request, as SGLang's scheduler has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.protocol import of

if TYPE_CHECKING:
    import torch

_BATCH = "sglang.srt.managers.schedule_batch"


@of("sglang.srt.sampling.sampling_params:SamplingParams")
class Sampling(Protocol):
    """How a request's tokens are chosen, and how many there may be."""

    max_new_tokens: int
    min_new_tokens: int
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    custom_params: Any
    """What a client says of its reading."""
    stream_interval: int | None
    """Holds tokens back, which a pause sends."""


@of(f"{_BATCH}:ReqKvInfo")
class ReqKv(Protocol):
    """A request's row of KV."""

    req_pool_idx: int
    holds_kv: bool
    kv_allocated_len: int
    kv_committed_len: int
    """Tokens whose KV it has computed."""
    cache_protected_len: int
    """Tokens of it that are the prefix tree's."""
    retraction_backup: Any
    """What a decode server has of it on the host."""


@of(f"{_BATCH}:ReqLogprob")
class ReqLogprobs(Protocol):
    """Log probabilities of a request."""

    input_token_logprobs_val: Any


@of("sglang.srt.observability.trace:TraceReqContext")
class TraceContext(Protocol):
    """The span of a request."""

    def trace_event(self, name: str, level: int, attrs: dict[str, Any]) -> None:
        """Adds pauses, loads and resumes."""


@of("sglang.srt.observability.req_time_stats:SchedulerReqTimeStats")
class ReqTimes(Protocol):
    """When what happened to a request."""

    trace_ctx: TraceContext
    forward_entry_time: float
    """Pauses do not count as running."""

    def set_wait_queue_entry_time(self, ts: float | None = None) -> None:
        """A stream that waits again is timed as SGLang times what it retracts."""

    def set_retract_time(self, ts: float | None = None) -> None:
        """A pause is timed as a retraction."""

    def set_completion_time(self, ts: float | None = None) -> None:
        """Ends the times of an aborted stream."""


@of(f"{_BATCH}:Req")
class Req(Protocol):
    """A request, as SGLang's scheduler has it."""

    rid: str
    stream: bool
    priority: int
    origin_input_ids: list[int]
    output_ids: list[int]
    kv: ReqKv
    sampling_params: Sampling
    time_stats: ReqTimes
    to_finish: Any
    """Why it ends with its next result."""
    finished_reason: Any
    send_token_offset: int
    """Tokens that were sent."""
    extra_key: str | None
    """With cache_salt: what keeps equal prompts apart in the prefix tree."""
    cache_salt: str | None
    positional_embed_overrides: Any
    cache_request_handle: Any
    """The key of its fetch from storage."""

    # Of its prefill.
    prefix_len: int
    extend_end: int
    full_untruncated_fill_ids: Any
    host_hit_length: int
    host_loaded_length: int
    swa_host_hit_length: int
    mamba_host_hit_length: int
    best_match_node: Any
    last_node: Any
    already_computed: int
    cached_tokens_storage: int
    inflight_middle_chunks: int

    # What a pause sets back.
    retraction_count: int
    """Paused is not retracted: a client's meta_info counts what the engine threw away."""
    storage_prefetch_retry_attempts: int
    storage_prefetch_last_match_len: int | None
    staged_prefetch_plan: Any

    # Why it is never preempted, or not restored.
    skip_radix_cache_insert: bool
    beam_group: Any
    session: Any
    input_embeds: Any
    multimodal_inputs: Any
    grammar: Any
    lora_id: str | None
    token_indices_to_pool: Any
    return_hidden_states: bool
    return_routed_experts: bool
    return_indexer_topk: bool
    return_sampling_mask: bool
    return_logprob: bool
    logprob: ReqLogprobs
    logprob_start_len: int
    """Left as it is, a resume would recompute every token of the output."""

    # Reasoning.
    require_reasoning: bool
    reasoning_tokens: int

    # Drafts of a paused stream.
    output_topk_p: torch.Tensor | None
    output_topk_index: torch.Tensor | None
    hidden_states_tensor: torch.Tensor | None
    pd_rebootstrap_forced_output_id: int | None

    @property
    def seqlen(self) -> int:
        """Tokens of prompt and output."""

    @property
    def extend_len(self) -> int:
        """Tokens of it that the prefill under way computes."""

    def finished(self) -> bool:
        """A stream that has drained may have ended."""

    def owned_kv_len(self) -> int:
        """Tokens whose KV a paused request keeps."""

    def refresh_fill_ids(self) -> None:
        """Ids of what is published."""

    def needs_host_load_back(self) -> bool:
        """Whether its prefill begins with a load."""

    def reset_for_retract(self) -> None:
        """Makes a request that is preempted resumable."""

    def update_finish_state(self, new_accepted_len: int = 1) -> None:
        """Ends a paused stream with its output."""

    def update_reasoning_tokens(self, token_id: Any, think_end_ids: Any) -> None:
        """Counts what no reader sees."""

    def set_finish_with_abort(
        self, error_msg: str, status_code: int = 400, err_type: str = "BadRequestError"
    ) -> None:
        """Answers a bad rate that came around the front end, and tenants at their caps."""

    def _compute_max_prefix_len(self, input_len: int) -> int:
        """How much of a prompt may come from the cache."""

    def offload_kv_cache(self, req_to_token_pool: Any, token_to_kv_pool_allocator: Any) -> None:
        """Copies a stream of DeepSeek V4 to the host."""
