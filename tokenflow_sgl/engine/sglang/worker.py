"""What is used of SGLang's scheduler and of what runs the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokenflow_sgl.engine.sglang.attention import RunnerOutput
from tokenflow_sgl.engine.sglang.batch import ForwardStep, ReqBatch
from tokenflow_sgl.engine.sglang.decode import DraftWorker, PreallocQueue, Transfers
from tokenflow_sgl.engine.sglang.pools import Allocator, Rows
from tokenflow_sgl.engine.sglang.protocol import of
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.tree import Tree

if TYPE_CHECKING:
    import torch

_SCHEDULE = "sglang.srt.managers.schedule_policy"


@of("sglang.srt.configs.model_config:ModelConfig")
class ModelConfig(Protocol):
    """The model's configuration."""

    hf_config: Any
    dtype: Any
    is_generation: bool
    is_hybrid_swa: bool
    is_encoder_decoder: bool
    attention_arch: Any
    num_attention_layers: int
    num_hidden_layers: int
    head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    think_end_ids: Sequence[int] | None

    def get_num_kv_heads(self, tensor_parallel_size: int) -> int:
        """How much memory KV takes."""


@of("sglang.srt.model_executor.model_runner:ModelRunner")
class Runner(Protocol):
    """Computes steps of the model."""

    device: str
    model: Any
    model_config: ModelConfig
    attn_backend: Any
    token_to_kv_pool: Any
    token_to_kv_pool_allocator: Allocator
    req_to_token_pool: Rows

    def forward(
        self,
        forward_batch: ForwardStep,
        *,
        reinit_attn_backend: bool = False,
        split_forward_count: int = 1,
    ) -> RunnerOutput:
        """Computes some layers of a prefill."""

    def sample(self, logits_output: Any, forward_batch: ForwardStep) -> torch.Tensor:
        """Samples where such a prefill ends."""

    def attn_tp_sequence_sharded(self, num_tokens: int) -> bool:
        """Tells a model whose ranks have each some of the tokens."""


@of("sglang.srt.managers.tp_worker:TpModelWorker")
class Worker(Protocol):
    """Runs batches on the device, on one rank."""

    model_runner: Runner

    def set_hicache_consumer(self, consumer_index: int) -> None:
        """Lets layers wait for a load."""


@of("sglang.srt.speculative.spec_info:SpeculativeAlgorithm")
class Speculation(Protocol):
    """Algorithm by which tokens are drafted."""

    def is_none(self) -> bool:
        """Whether no tokens are drafted at all."""


@of("sglang.srt.managers.overlap_utils:FutureMap")
class Relay(Protocol):
    """Says what the next step of each row begins with."""

    need_topk: bool
    need_hidden_states: bool
    topk_p_buf: torch.Tensor
    topk_index_buf: torch.Tensor
    hidden_states_buf: torch.Tensor

    def stash(self, future_indices: torch.Tensor, payload: Any) -> None:
        """Paused streams go on with their last token."""


@of("sglang.srt.mem_cache.prefill_budget:PrefillBudget")
class Budget(Protocol):
    """The memory that SGLang still has for a prefill."""

    def reserve(self, extend_input_len: int, max_new_tokens: int) -> None:
        """Keeps memory for the rest of a prompt that leaves room in its step."""


@of(f"{_SCHEDULE}:_PrefillAdmission")
class Admitted(Protocol):
    """What SGLang would prefill of a prompt."""

    is_chunked: bool


@of(f"{_SCHEDULE}:PrefillAdder")
class PrefillAdmission(Protocol):
    """SGLang's choice of a prefill, under way."""

    can_run_list: list[Req]
    preempt_list: list[Req]
    running_batch: ReqBatch | None
    token_to_kv_pool_allocator: Allocator
    tree_cache: Tree
    is_hybrid_swa: bool
    memory_budget: Budget
    new_chunked_req: Req | None
    """SGLang prefills one prompt in part at a time."""

    def budget_state(self) -> Any:
        """Whether more can be admitted."""

    def _get_running_request_total_token_offset(self, req: Req) -> float:
        """What SGLang reserves for a stream that runs."""

    def _lock_node(self, last_node: Any) -> Any:
        """What a load will lock does not count as free."""


@of("sglang.srt.arg_groups.fields.parallel:Parallel")
class Ranks(Protocol):
    """Where in a group of processes this one is, as `get_parallel` says."""

    attn_tp_size: int
    attn_tp_rank: int
    attn_cp_size: int
    attn_cp_rank: int
    dp_rank: int | None
    pp_rank: int
    pp_max_micro_batch_size: int
    """Rows that one batch may have."""
    enable_cp_tp_group_sharing: bool


@of("sglang.srt.constrained.grammar_manager:GrammarManager")
class Grammars(Protocol):
    """Compiles the grammars that requests name."""

    grammar_queue: list[Req]
    """Where an abort's id may be the beginning of another's."""


@of("sglang.srt.beam_search.coordinator:BeamCoordinator")
class Beams(Protocol):
    """Groups of rows of beam search."""

    def retire_group(self, req: Req) -> None:
        """Uncounts a group that was thrown out and then aborted."""


@of("sglang.srt.managers.scheduler_components.output_streamer:SchedulerOutputStreamer")
class OutputStreamer(Protocol):
    """Sends tokens to the detokenizer."""

    def stream_output(self, reqs: list[Req], return_logprob: bool) -> None:
        """Sends an aborted stream's output, and what a paused one has unsent."""


@of("sglang.srt.observability.metrics_collector:SchedulerMetricsCollectorContext")
class ReporterContext(Protocol):
    """Says which rank reports metrics."""

    current_scheduler_metrics_enabled: bool


@of("sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager")
class WeightUpdater(Protocol):
    """Takes memory away and gives it back."""

    scheduler: Any


@of("sglang.srt.managers.io_struct:AbortReq")
class AbortAsked(Protocol):
    """A client, or a time limit, ends requests."""

    rid: str
    abort_all: bool


@of("sglang.srt.managers.load_snapshot:LoadSnapshot")
class Load(Protocol):
    """The load of one scheduler, as /v1/loads answers it."""

    queues: Any
    num_running_reqs: int
    token_usage: float
    num_total_tokens: int
    num_active_tokens: int


@of("sglang.srt.distributed.parallel_state:GroupCoordinator")
class Group(Protocol):
    """Ranks of one process group, which agree on figures."""

    world_size: int
    cpu_group: Any


@of("sglang.srt.managers.scheduler:Scheduler")
class LiveScheduler(Protocol):
    """SGLang's scheduler, as far as the parts that it is given to know it."""

    server_args: ServerArgs
    device: str
    model_config: ModelConfig
    tokenizer: Any
    policy: Any
    """SGLang's order of its waiting queue."""
    tree_cache: Tree
    req_to_token_pool: Any
    token_to_kv_pool_allocator: Any
    waiting_queue: list[Req]
    chunked_req: Req | None
    """Its prompt is prefilled in part."""
    last_batch: ReqBatch | None
    running_batch: ReqBatch
    grammar_manager: Grammars
    beam_coordinator: Beams
    output_streamer: OutputStreamer
    _pending_chunked_abort_req: Req | None
    _request_dispatcher: Any
    """Takes the shared clock's message."""
    result_queue: Any
    """Batches whose results are in flight."""
    future_map: Relay
    schedule_stream: Any
    forward_stream: Any
    forward_stream_ctx: Any
    enable_overlap: bool
    enable_hierarchical_cache: bool
    enable_hicache_storage: bool
    metrics_collector: Any
    metrics_collector_context: ReporterContext
    _engine_paused: bool
    page_size: int
    max_running_requests: int
    max_total_num_tokens: int
    sliding_window_size: int | Any
    chunked_prefill_size: int | Any
    truncation_align_size: int | None
    is_mixed_chunk: bool
    enable_lora: bool
    require_mlp_sync: bool
    enable_priority_scheduling: bool
    enable_priority_preemption: bool
    """Off: two policies would act."""
    schedule_low_priority_values_first: bool
    spec_algorithm: Speculation
    tp_worker: Worker
    model_worker: Any
    """Runs batches; another one finishes a prefill that was split."""
    draft_worker: DraftWorker | None
    disagg_decode_prealloc_queue: PreallocQueue
    disagg_decode_transfer_queue: Transfers

    def _prefetch_kvcache(self, req: Req, storage_hit_end: int | None = None) -> None:
        """Re-queues as the engine does."""

    def _release_aborted_request(self, req: Req) -> None:
        """Ends what SGLang has of a paused stream that is aborted."""

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        """Whether caches may be flushed."""

    def _apply_war_barrier(self) -> None:
        """Keeps later writes behind what layers read that are launched beside a step."""


@of("sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator")
class Configurator(Protocol):
    """Sizes and makes the device's memory."""

    model_config: ModelConfig
    use_mla_backend: bool
