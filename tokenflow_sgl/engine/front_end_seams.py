"""The ledger's rows for a launch, and for the process of the HTTP server or the offline engine."""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.seam import Seam

_LOADS = "sglang.srt.managers.load_snapshot"

FRONT_END: tuple[Seam, ...] = (
    # Configuration
    Seam(
        "sglang.srt.server_args:ServerArgs.add_cli_args", "hook", "declares the flags", ("parser",)
    ),
    Seam(
        "sglang.srt.server_args:ServerArgs.from_cli_args",
        "hook",
        "puts the configuration on the record",
        ("args",),
    ),
    Seam(
        "sglang.srt.managers.scheduler:configure_scheduler_process",
        "hook",
        "replaces the scheduler class, in its process and only with the flag",
        ("server_args",),
    ),
    Seam(
        "sglang.srt.entrypoints.engine:Engine._launch_scheduler_processes",
        "hook",
        "waits until every scheduler has said that it is ours",
        ("server_args",),
    ),
    Seam(
        "sglang.srt.entrypoints.engine:SchedulerInitResult",
        "call",
        "what that returns",
        ("scheduler_infos", "all_child_pids", "wait_for_ready"),
    ),
    Seam(
        "sglang.srt.managers.data_parallel_controller:DataParallelController.get_init_info",
        "hook",
        "passes on what the schedulers of data-parallel replicas say",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",
        "hook",
        "answers a bad rate with HTTP 400",
        ("obj",),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager._wait_one_response",
        "hook",
        "delivers a stream from its token deposit",
        ("obj",),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:_INCREMENTAL_STREAMING_META_INFO_KEYS",
        "call",
        "cuts chunks in the deposit: lists with an entry for each token",
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:ReqState",
        "call",
        "the same, of what models add; says whether a stream has reached the scheduler",
        ("customized_info_accumulated", "dispatched"),
    ),
    Seam(
        "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat._generate_chat_stream",
        "hook",
        "notices text that parsers of tool calls hold back",
        ("adapted_request",),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:SignalHandler.sigterm_handler",
        "hook",
        "ends rests: the server waits for all streams before it ends",
        ("self",),
    ),
    Seam(
        "sglang.srt.utils.aio_rwlock:RWLock.acquire_writer",
        "hook",
        "the same: new weights wait for all streams, and newcomers for them",
        ("self",),
    ),
    Seam(
        "sglang.srt.lora.lora_registry:LoRARegistry.wait_for_unload",
        "hook",
        "the same: an adapter is unloaded when no stream uses it any more",
        ("lora_id",),
    ),
    Seam("sglang.srt.entrypoints.http_server:app", "call", "gets /tokenflow/streams"),
    Seam("sglang.srt.utils.auth:auth_level", "call", "guards it as /abort_request is guarded"),
    Seam(
        "sglang.srt.utils.auth:add_api_key_middleware",
        "call",
        "asks for keys in every tokenizer worker, as SGLang does where there is one",
        ("app", "api_key", "admin_api_key"),
    ),
    Seam(
        "sglang.srt.managers.multi_tokenizer_mixin:read_from_shared_memory",
        "call",
        "the same: says with which keys the server was started",
        ("name",),
    ),
    Seam("sglang.srt.managers.multi_tokenizer_mixin:get_main_process_id", "call", "the same"),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin:TokenizerControlMixin.init_communicators",
        "call",
        "makes set_internal_state_communicator, which tells the scheduler of live streams",
    ),
    Seam(
        "sglang.srt.managers.communicator:FanOutCommunicator.__call__",
        "call",
        "the same, and returns all schedulers' answers",
        ("obj",),
    ),
    Seam(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager.auto_create_handle_loop",
        "call",
        "receives them",
    ),
    Seam(
        "sglang.srt.managers.io_struct:SetInternalStateReqOutput",
        "call",
        "carries what was understood, in a field that SGLang leaves empty",
        ("rid", "updated"),
    ),
    Seam(
        "sglang.srt.constrained.grammar_manager:GrammarManager.abort_requests",
        "call",
        "looks through grammar_queue, where an abort's id may be the beginning of another's",
        ("recv_req",),
    ),
    Seam(
        "sglang.srt.environ:envs.SGLANG_HTTP_SERVER_APP_PATH",
        "call",
        "puts our part of the front end into every tokenizer worker",
    ),
    Seam("sglang.srt.environ:envs.SGLANG_RUST_SERVER", "call", "is refused: no Python front end"),
    Seam(
        "sglang.srt.managers.schedule_batch:Req.set_finish_with_abort",
        "call",
        "answers a bad rate that came around the front end",
        ("error_msg",),
    ),
    Seam(
        "sglang.srt.entrypoints.http_server:serve_generate_request",
        "hook",
        "answers a bad rate on a /generate stream before its HTTP 200; reads headers of objectives",
        ("obj", "request"),
    ),
    Seam(
        "sglang.srt.entrypoints.openai.serving_base:OpenAIServingBase.handle_request",
        "hook",
        "answers a rate outside of custom_params with HTTP 400; reads headers of objectives",
        ("request", "raw_request"),
    ),
    *(
        Seam(
            f"sglang.srt.entrypoints.{handler}",
            "hook",
            "answers a rate with HTTP 400 where SGLang would drop it",
            ("request", "raw_request"),
        )
        for handler in (
            "openai.serving_responses:OpenAIServingResponses.create_responses",
            "anthropic.serving:AnthropicServing.handle_messages",
            "ollama.serving:OllamaServing.handle_chat",
            "ollama.serving:OllamaServing.handle_generate",
        )
    ),
    # What tokenflow doctor walks through
    Seam("sglang.srt.plugins:load_plugins", "call", "loads us as a launch does"),
    Seam(
        "sglang.srt.server_args:prepare_server_args",
        "call",
        "parses the options of a launch that the doctor is asked about",
        ("argv",),
    ),
    Seam("sglang.srt.server_args:ServerArgs.resolve_once", "call", "checks them together"),
    Seam("sglang.srt.server_args:ServerArgs.check_server_args", "call", "the same"),
    Seam("sglang.srt.utils.common:get_device", "call", "finds the device"),
    Seam(
        "sglang.srt.arg_groups.model_override_base:model_config_of",
        "call",
        "reads what kind of model it is",
        ("server_args",),
    ),
    Seam("sglang.srt.mem_cache.kv_cache_builder:uses_ssm_state", "call", "the same"),
    Seam(f"{_LOADS}:LoadSnapshot.to_dict", "override", "headroom in /v1/loads", ("include",)),
    Seam(f"{_LOADS}:snapshot_decoder", "hook", "the same, where it is read"),
)
