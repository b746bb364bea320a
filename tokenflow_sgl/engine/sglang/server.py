"""What is used of a launch's options, and of the process that serves HTTP."""

from __future__ import annotations

from typing import Any, Protocol

from tokenflow_sgl.engine.sglang.protocol import of

_MANAGER = "sglang.srt.managers.tokenizer_manager"


@of("sglang.srt.server_args:ServerArgs")
class ServerArgs(Protocol):
    """The options of a launch."""

    model_path: str
    revision: str | None
    device: str | None
    is_embedding: bool
    attention_backend: str | None
    kv_cache_dtype: str
    chunked_prefill_size: int | None
    enable_mixed_chunk: bool
    enable_two_batch_overlap: bool
    speculative_algorithm: str | None
    max_total_tokens: int | None
    tp_size: int
    pp_size: int
    dp_size: int
    attn_dp_size: int
    nnodes: int
    disaggregation_mode: str
    strip_thinking_cache: bool
    tokenizer_worker_num: int
    api_key: str | None
    admin_api_key: str | None
    enable_hierarchical_cache: bool
    hicache_size: float
    hicache_ratio: float | None
    hicache_host_memory_fraction: float | None
    hicache_write_policy: str
    hicache_storage_backend: str | None

    def resolve_once(self) -> None:
        """Checks options together, for the doctor."""

    def check_server_args(self) -> None:
        """Checks options together, after those that depend on the model."""


@of("sglang.srt.runtime_context:RuntimeContext")
class ResolvedOptions(Protocol):
    """The options of a process, as they have been resolved."""

    server_args: ServerArgs

    def override(self, source: str, **fields: Any) -> None:
        """Sizes the host's pools of KV."""


@of(f"{_MANAGER}:ReqState")
class ServedReq(Protocol):
    """A request in the process that serves HTTP."""

    customized_info_accumulated: dict[str, list[Any]]
    """Cuts chunks in the deposit, of what models add."""
    dispatched: bool
    """Says whether a stream has reached the scheduler."""


@of("sglang.srt.managers.io_struct:GenerateReqInput")
class AskedFor(Protocol):
    """A request as a client has written it."""

    rid: Any
    stream: bool
    sampling_params: Any
    return_hidden_states: Any
    return_routed_experts: bool
    return_indexer_topk: bool


@of("sglang.srt.managers.load_snapshot:LoadSnapshot")
class PublishedLoad(Protocol):
    """The load of one scheduler, as it has published it."""

    timestamp: float
    """Tells one load from the next."""


@of("sglang.srt.managers.load_snapshot:ShmLoadSnapshotReader")
class LoadReader(Protocol):
    """Reads the loads that schedulers publish."""

    def read_all(self) -> list[Any]:
        """The last load of each, decoded by our decoder."""


@of(f"{_MANAGER}:TokenizerManager")
class Manager(Protocol):
    """Receives requests and sends answers."""

    server_args: ServerArgs
    tokenizer: Any
    rid_to_state: dict[str, Any]
    incremental_streaming_output: bool
    enable_metrics: bool
    metrics_collector: Any
    load_snapshot_reader: LoadReader
    """Has the loads that the schedulers publish, newcomers' wait among them."""
    model_update_lock: Any
    """New weights wait for all streams."""
    lora_registry: Any

    def __hash__(self) -> int:
        """A manager is the key of what is kept for it."""

    def auto_create_handle_loop(self) -> None:
        """Receives the scheduler's answers."""


@of("sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin")
class Controls(Protocol):
    """How the scheduler is told of live streams."""

    def init_communicators(self, *args: Any, **kwargs: Any) -> None:
        """Makes set_internal_state_communicator."""


@of("sglang.srt.managers.communicator:FanOutCommunicator")
class Communicator(Protocol):
    """Asks all schedulers of a server, and waits for their answers."""

    async def __call__(self, obj: Any) -> list[Any]:
        """Asks all schedulers and returns their answers."""


@of(f"{_MANAGER}:SignalHandler")
class Signals(Protocol):
    """Hears that the server is to end."""

    tokenizer_manager: Manager


@of("sglang.srt.entrypoints.openai.serving_base:OpenAIServingBase")
class OpenAiServing(Protocol):
    """Serves a route of OpenAI's."""

    tokenizer_manager: Manager

    def create_error_response(self, message: str) -> Any:
        """Answers a bad rate with HTTP 400."""


@of("sglang.srt.entrypoints.engine:SchedulerInitResult")
class Launched(Protocol):
    """What launching the schedulers returns."""

    scheduler_infos: list[dict[str, Any]]
    all_child_pids: list[int]

    def wait_for_ready(self) -> None:
        """All have said that they are ready."""


@of("sglang.srt.entrypoints.engine:Engine")
class OfflineEngine(Protocol):
    """SGLang's offline engine, from which ours derives."""

    server_args_class: type
