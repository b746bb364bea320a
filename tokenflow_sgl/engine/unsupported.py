"""Which SGLang options and requests the preemptive scheduler does not serve, and why.

Options that would break it stop the start with one sentence. Requests that cannot be
preempted run undisturbed among the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenflow_sgl.engine.config import NO_PLANNER, TokenFlowConfig
from tokenflow_sgl.engine.layerwise_settings import NO_LAYERS
from tokenflow_sgl.engine.refusal import Refusal, UnsupportedError
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.version import at_least

_OPTIONS: tuple[tuple[str, object, str], ...] = (
    ("use_ray", False, "Ray workers do not load SGLang plugins"),
    ("pp_size", 1, "pipeline stages keep batches in flight that cannot be drained in one step"),
    (
        "disable_radix_cache",
        False,
        "KV of paused streams is kept in the radix cache, which costs streams no memory: what none "
        "uses is evicted first",
    ),
    ("enable_hisparse", False, "it moves running KV by itself"),
    ("enable_pdmux", False, "it multiplexes prefill and decode by itself"),
    ("encoder_only", False, "an encoder does not stream tokens"),
    ("dllm_algorithm", None, "diffusion models do not stream token by token"),
    ("enable_lmcache", False, "only HiCache's host memory has been tried"),
    ("enable_flexkv", False, "only HiCache's host memory has been tried"),
    ("radix_cache_backend", None, "only SGLang's own radix cache has been tried"),
    ("enable_session_radix_cache", False, "sessions own their KV"),
    ("hicache_host_memory_mode", "cache", "paused streams' KV is kept in the host's memory"),
)

OF_DECODING: tuple[tuple[str, object, str], ...] = (
    (
        "disaggregation_decode_enable_radix_cache",
        False,
        "only decode servers without a prefix tree have been tried",
    ),
    (
        "disaggregation_decode_enable_offload_kvcache",
        False,
        "it copies KV of running streams to a storage by itself",
    ),
    (
        "disaggregation_decode_host_receive_threshold",
        1,
        "KV that arrives on the host has not been tried",
    ),
    ("enable_pd_role_switch", False, "a server that changes its role has not been tried"),
)
"""Options that exclude it there: name, value that does not, reason."""
NOT_OF_DECODING = {"disable_radix_cache"}
"""Options that exclude it elsewhere only: KV of paused streams is kept on the host."""
BACKUP = "disaggregation_decode_retraction_backup"
NO_BACKUP = "paused streams' KV is kept as SGLang keeps that of retracted ones"
"""Why it must not be none."""

_DP_GROUPS = "only --dp-size as large as --tp-size has been tried, where each rank decides alone"
_DELAYER = "its ranks ask each other in every step, and the policy of one may leave a step out"

_TWICE = (
    "before 0.5.23 KV may be given back twice where streams are aborted while the engine pauses"
)
"""Found by the attackers, in stock SGLang, too; 0.5.23 passes. The cause was not found."""

_SPECULATIVE = (None, "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE")
"""SGLang's algorithms of speculation that are served; None: it is off. NEXTN is resolved to EAGLE
or to another, which is refused then."""
_TRIED = "only EAGLE, EAGLE3, NEXTN, NGRAM and STANDALONE have been tried"
_OF_SPECULATION: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("speculative_algorithm", _SPECULATIVE, _TRIED),
    ("speculative_adaptive", (False,), "its steps change how much memory they take"),
    ("enable_multi_layer_eagle", (False,), "only the first layer's drafts are kept on the host"),
    ("enable_mixed_chunk", (False,), "a row of a mixed step verifies no drafts"),
)
"""Options that exclude the scheduler where drafts are verified, with what is allowed of them."""
_SINCE = "0.5.23"
"""The first SGLang with which answers with drafts were compared, and that decode servers need."""
_UNTRIED = f"it has been tried with SGLang {_SINCE} and later only"
_OF_NGRAM = {("enable_mixed_chunk", "NGRAM")}
"""Which of them do not hold for NGRAM: SGLang mixes no steps there."""
_TREES = "of drafts only chains have been tried with pages of several tokens, not trees"

NO_STREAMS = "a prefill server hands each stream over at its first token"
"""Why the scheduler stays off where `has_no_streams`."""


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def refused_options(
    server_args: ServerArgs, ours: str = "--scheduler tokenflow", *, layers: bool = False
) -> Iterator[Refusal]:
    """All options that exclude the scheduler, or `ours`, in a record that is not resolved yet.

    layers: KV is placed layer by layer, so that paused KV needs no prefix tree to lie in.
    """
    decodes = decodes_only(server_args)
    for name, plain, reason in (*_OPTIONS, *(OF_DECODING if decodes else ())):
        value = getattr(server_args, name, plain)
        kept = name in NOT_OF_DECODING if decodes else layers and name == "disable_radix_cache"
        if value != plain and not kept:
            yield _excluded(ours, _flag(name), f"{_flag(name)} {value}", reason)
    width, ranks = attention_dp(server_args), getattr(server_args, "tp_size", 1)
    if 1 < width < ranks:
        shown = f"DP attention in {width} groups of {ranks // width} ranks"
        yield _excluded(ours, "--enable-dp-attention", shown, _DP_GROUPS)
    if width > 1 and getattr(server_args, "enable_prefill_delayer", False):
        shown = "--enable-prefill-delayer with DP attention"
        yield _excluded(ours, "--enable-prefill-delayer", shown, _DELAYER)
    if decodes and not at_least(_SINCE):
        shown = "--disaggregation-mode decode on this SGLang"
        yield _excluded(ours, "--disaggregation-mode", shown, _TWICE)
    if decodes and getattr(server_args, BACKUP, None) == "none":
        yield _excluded(ours, _flag(BACKUP), f"{_flag(BACKUP)} none", NO_BACKUP)
    yield from refused_speculation(server_args, getattr(server_args, "page_size", None), ours)


def attention_dp(server_args: ServerArgs) -> int:
    """Ranks with DP attention, in SGLang's present spelling or its old one; 1: it is off."""
    width: int = getattr(server_args, "attn_dp_size", None) or 1
    if width == 1 and getattr(server_args, "enable_dp_attention", False):
        width = getattr(server_args, "dp_size", None) or 1
    return width


def refused_speculation(
    spec: Any, page: int | None, ours: str = "--scheduler tokenflow"
) -> Iterator[Refusal]:
    """Options of speculation that exclude the scheduler, or `ours`.

    spec: A record that says them, resolved or not: what SGLang chooses by itself counts, too.
    page: Tokens of a page, likewise.
    """
    algorithm = getattr(spec, "speculative_algorithm", None)
    if algorithm is None:
        return
    if not at_least(_SINCE):
        shown = f"--speculative-algorithm {algorithm} on this SGLang"
        yield _excluded(ours, "--speculative-algorithm", shown, _UNTRIED)
        return
    for name, allowed, reason in _OF_SPECULATION:
        value = getattr(spec, name, allowed[0])
        if value not in allowed and (name, algorithm) not in _OF_NGRAM:
            shown = f"{_flag(name)} {value}"
            yield _excluded(ours, _flag(name), shown, reason)
    branches = getattr(spec, "speculative_eagle_topk", None)
    if algorithm != "NGRAM" and branches not in (None, 1) and (page or 1) > 1:
        shown = f"--speculative-eagle-topk {branches} with --page-size {page}"
        yield _excluded(ours, "--speculative-eagle-topk", shown, _TREES)


def check_speculation(spec: Any, page: int) -> None:
    """Raise `UnsupportedError` for the first option of speculation that excludes the scheduler."""
    for refusal in refused_speculation(spec, page):
        raise UnsupportedError(refusal.sentence)


def has_no_streams(server_args: ServerArgs) -> bool:
    """Whether the server only prefills: nothing of ours runs there that an option could break."""
    mode: str = getattr(server_args, "disaggregation_mode", "null")
    return mode == "prefill"


def decodes_only(server_args: ServerArgs) -> bool:
    """Whether prefills happen elsewhere: the decode server of a disaggregated pair."""
    mode: str = getattr(server_args, "disaggregation_mode", "null")
    return mode == "decode"


def has_workers(server_args: ServerArgs) -> bool:
    """Whether several tokenizer workers serve HTTP, each in a process of its own."""
    number: int = getattr(server_args, "tokenizer_worker_num", 1)
    return number > 1


def _excluded(ours: str, subject: str, shown: str, reason: str) -> Refusal:
    sentence = f"{ours} does not work with {shown}: {reason}; remove one of the two."
    return Refusal(subject, sentence)


def check_options(
    server_args: ServerArgs, ours: str = "--scheduler tokenflow", *, layers: bool = False
) -> None:
    """Raise `UnsupportedError` for the first option that excludes the scheduler, or `ours`.

    layers: As of `refused_options`.
    """
    for refusal in refused_options(server_args, ours, layers=layers):
        raise UnsupportedError(refusal.sentence)


def check_restore(server_args: ServerArgs) -> None:
    """Raise `UnsupportedError` if prefixes cannot be restored from both sides with these options.

    What keeps the scheduler from serving keeps restorations, too: they hand requests back to the
    queue as it does.
    """
    check_options(server_args, "--tokenflow-restore")
    _check_drafts(server_args, "--tokenflow-restore", "drafts' KV is not fetched from storage")
    if decodes_only(server_args):
        raise UnsupportedError(
            "--tokenflow-restore does not work with --disaggregation-mode decode: prompts are "
            "computed, or restored, by the prefill server; remove one of the two."
        )
    storage = getattr(server_args, "hicache_storage_backend", None)
    if storage is None or not server_args.enable_hierarchical_cache:
        raise UnsupportedError(
            "--tokenflow-restore fetches prefixes from HiCache's storage, and there is none; "
            "add --enable-hierarchical-cache --hicache-storage-backend, or leave it out."
        )
    if server_args.hicache_write_policy == "write_through_selective":
        raise UnsupportedError(
            "--tokenflow-restore does not work with --hicache-write-policy "
            "write_through_selective: it may keep no copy of a computed head, and SGLang's tree "
            "takes no fetched tail behind it; remove one of the two."
        )


def _check_drafts(server_args: ServerArgs, ours: str, reason: str) -> None:
    algorithm = getattr(server_args, "speculative_algorithm", None)
    if algorithm is not None:
        name = "--speculative-algorithm"
        raise UnsupportedError(_excluded(ours, name, f"{name} {algorithm}", reason).sentence)


def check_prefill(chunk_size: int | None) -> None:
    """Raise `UnsupportedError` if prompts are not prefilled in chunks."""
    if chunk_size is None or chunk_size <= 0:
        raise UnsupportedError(
            "--tokenflow-restore does not work without chunked prefill: the computed head "
            "ends where a chunk does; give --chunked-prefill-size, or leave one of the two out."
        )


def check_contiguity(server_args: ServerArgs, config: TokenFlowConfig) -> None:
    """Raise `UnsupportedError` if block groups are asked for, and there are no copies of them."""
    if not config.block_groups:
        return
    ours = "block_groups (--tokenflow-tuning)"
    if decodes_only(server_args):
        raise UnsupportedError(
            f"{ours} does not work with --disaggregation-mode decode: it makes "
            "HiCache's copies larger, and there are none; remove one of the two."
        )
    _check_drafts(server_args, ours, "only steps of a token have been tried")
    if config.hicache != "auto" and not server_args.enable_hierarchical_cache:
        raise UnsupportedError(
            f"{ours} does not work with --tokenflow-hicache off: it makes copies "
            "to and from host memory larger, and there are none; remove one of the two."
        )


def check_scheduled_layers(config: TokenFlowConfig) -> None:
    """Raise `UnsupportedError` for what does not go together with KV that is placed by layer."""
    if config.layerwise == NO_LAYERS:
        return
    for ours, on in (
        ("--tokenflow-restore", config.restore != NO_PLANNER),
        ("block_groups (--tokenflow-tuning)", config.block_groups),
    ):
        if on:
            raise UnsupportedError(
                f"{ours} does not work with --tokenflow-layerwise: it is about HiCache's copies, "
                "and there are none; remove one of the two."
            )


def undisturbed_reason(req: Req) -> str | None:
    """Why a request is never preempted; None if it can be."""
    if req.beam_group is not None:
        return "beam search keeps several rows"
    if req.return_hidden_states:
        return "hidden states would be returned twice"
    if req.return_routed_experts or req.return_indexer_topk:
        return "routing records are per forward pass"
    if req.return_sampling_mask:
        return "sampling masks are per forward pass"
    if req.session is not None:
        return "a session owns its KV"
    if req.input_embeds is not None:
        return "generated tokens have no input embeddings"
    if req.multimodal_inputs is not None:
        return "multimodal prompts are not re-encoded"
    if req.return_logprob and 0 <= req.logprob_start_len < len(req.origin_input_ids):
        return "prompt log probabilities need the whole prompt in one prefill"
    return None


def undisturbed_without_prefill(req: Req) -> str | None:
    """Why a request is never preempted where a resume is a decode step; None if it can be."""
    sampling = req.sampling_params
    if (
        sampling.frequency_penalty
        or sampling.presence_penalty
        or sampling.repetition_penalty != 1.0
        or sampling.min_new_tokens
    ):
        return "a token would be counted earlier after a resume, for penalties"
    return None
