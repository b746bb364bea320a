"""What `--scheduler tokenflow` changes of a server besides its order, with sizes where known.

For `tokenflow doctor`. Host memory is `--hicache-size` as it is, or a ratio to the device's pool;
where no option asks for one it is that of `host_memory`, as far as all ranks' pools fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.engine.config import TokenFlowConfig, tuned_text
from tokenflow_sgl.engine.host_memory import (
    RESERVE,
    HostRoom,
    aimed_ratio,
    left_bytes,
    local_ranks,
    replicas,
    safe_bytes,
)
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.worker import ModelConfig
from tokenflow_sgl.engine.unsupported import attention_dp, decodes_only
from tokenflow_sgl.engine.unsupported_front_ends import OFF_IN_RUST, in_rust
from tokenflow_sgl.host_pool import GB, HOST_RATIO, MOST_RATIO


@dataclass(frozen=True, slots=True)
class KvSize:
    """KV of one token on one rank.

    Attributes:
        bytes: How many; None: not derived.
        why: What that follows from, or what is missing.
    """

    bytes: int | None
    why: str


UNREAD = KvSize(None, "the model's config.json was not read")


def kv_size(record: ServerArgs, model: ModelConfig, *, whole: bool) -> KvSize:
    """From SGLang's configuration of a model.

    record: SGLang's ServerArgs, resolved.
    whole: All of the model's KV is of whole prefixes: it has no windows and no states.
    """
    if not whole:
        return KvSize(None, "windows or states have pools of their own, sized at the start")
    width = _value_bytes(record.kv_cache_dtype, model.dtype)
    if width is None:
        return KvSize(None, f"--kv-cache-dtype {record.kv_cache_dtype} has scales of its own")
    layers = int(model.num_attention_layers)
    pieces = -(-layers // record.pp_size)
    if getattr(model.attention_arch, "name", "") == "MLA":
        values = int(model.kv_lora_rank) + int(model.qk_rope_head_dim)
        shape = f"{pieces} layers of {values} values (MLA, whole on each rank)"
    else:
        heads = int(model.get_num_kv_heads(max(1, record.tp_size // attention_dp(record))))
        each = int(model.head_dim) + int(model.v_head_dim)
        values = heads * each
        shape = f"{pieces} layers, {heads} KV heads of {each} values for key and value"
    return KvSize(pieces * values * width, f"{shape}, {width} bytes each")


def _value_bytes(name: str, dtype: Any) -> int | None:
    if name == "auto":
        return int(dtype.itemsize)
    if name in ("bfloat16", "bf16", "float16"):
        return 2
    return 1 if name.startswith("fp8") else None


def consequences(
    record: ServerArgs, plain: ServerArgs, config: TokenFlowConfig, kv: KvSize, room: HostRoom
) -> Iterator[tuple[str, str]]:
    """Rows of a table: what is concerned, and what becomes of it.

    Args:
        record: SGLang's ServerArgs with our configuration, as it was parsed.
        plain: The same without our scheduler.
        config: That configuration.
        kv: Of the model.
        room: Of the machine that the server will run on.
    """
    yield "host memory", _host_memory(record, plain, config, kv, room)
    yield "mixed chunks", _mixed(record, config)
    chunk = config.working_set.prefill_chunk
    if not decodes_only(record) and config.policy == "working-set":
        limit = record.chunked_prefill_size
        most = chunk if limit is None or limit <= 0 else min(chunk, limit)
        yield (
            "prefills",
            f"at most {most} tokens a step while streams decode (prefill_chunk), and "
            "as --chunked-prefill-size says otherwise",
        )
    if config.tuning:
        yield "tuning", f"{config.tuning}: {tuned_text(config) or 'all as shipped'}"
    if in_rust():
        yield "front end", f"SGLang's in Rust: {OFF_IN_RUST}"
    default = config.known_classes.default
    yield (
        "order",
        f"policy {config.policy} decides who runs; --schedule-policy has no effect. Requests that "
        f"state no rate count as read at {default.rate:g} tokens/s",
    )


def _host_memory(
    record: ServerArgs, plain: ServerArgs, config: TokenFlowConfig, kv: KvSize, room: HostRoom
) -> str:
    decodes = decodes_only(record)
    if not (decodes or record.enable_hierarchical_cache):
        why = "--tokenflow-layerwise" if config.hicache == "auto" else "--tokenflow-hicache off"
        return f"HiCache stays off ({why}): none is taken for it"
    what = "a pool for KV of paused streams" if decodes else "HiCache"
    before = not decodes and plain.enable_hierarchical_cache
    how = f"{what} is on" if before else f"{what} is switched on by --scheduler tokenflow"
    ranks = local_ranks(record)
    parts = [how, *_sizes(record, kv, room, ranks)]
    if kv.bytes is None:
        parts.append(f"bytes of KV per token are not known ({kv.why})")
    else:
        parts.append(f"a token has {kv.bytes:,} bytes of KV per rank ({kv.why})")
    return "; ".join(parts)


def _sizes(record: ServerArgs, kv: KvSize, room: HostRoom, ranks: int) -> Iterator[str]:
    """Per rank and in all, and what of that this machine has."""
    size, ratio = record.hicache_size, record.hicache_ratio
    fraction = record.hicache_host_memory_fraction
    device = record.max_total_tokens * kv.bytes if record.max_total_tokens and kv.bytes else None
    if size:
        yield _in_all(int(size * GB), ranks, f"--hicache-size {size}")
    elif ratio is not None or fraction is None:
        yield from _by_ratio(HOST_RATIO if ratio is None else ratio, device, ranks)
    else:
        yield from _by_machine(device, room, ranks, fraction)
    yield _of_machine(room, ranks)
    if room.free is None:
        return
    share = left_bytes(room, ranks)
    asked = size * GB if size else ratio * device if ratio is not None and device else 0
    if not share:
        away = "" if decodes_only(record) else ", or start with --tokenflow-hicache off"
        yield f"SGLang will refuse to start: free some{away}"
    elif asked > share * replicas(record):
        yield f"SGLang will refuse that here: {_gb(share)} per rank are left"
    elif asked > share:
        yield (
            f"that is more than the {_gb(share)} per rank that are left, which SGLang does not "
            "notice of replicas: the server may be killed"
        )


def _by_ratio(ratio: float, device: int | None, ranks: int) -> Iterator[str]:
    """By an option, or by SGLang's usual ratio; device: bytes of KV of a rank, if known."""
    if device is None:
        yield f"{ratio:g} times the device's KV pool, whose size is known when the server starts"
    else:
        yield _in_all(int(ratio * device), ranks, f"{ratio:g} times --max-total-tokens")


def _by_machine(device: int | None, room: HostRoom, ranks: int, fraction: float) -> Iterator[str]:
    """By what is free where no option says anything."""
    most = safe_bytes(room, ranks, fraction) if room.free is not None else None
    if device is not None:
        aimed = aimed_ratio(device, room, ranks, fraction)
        fits = aimed if most is None else min(aimed, most / device)
        yield from _by_ratio(round(fits, 2), device, ranks)
        return
    up_to = f"{HOST_RATIO:g} to {MOST_RATIO:g}" if room.devices else f"{HOST_RATIO:g}"
    yield f"{up_to} times the device's KV pool, whose size is known when the server starts"
    if most is not None:
        yield f"at most {_gb(most)} of host memory per rank, {_gb(most * ranks)} in all"


def _in_all(taken: int, ranks: int, source: str) -> str:
    return f"{_gb(taken)} of host memory per rank, {_gb(taken * ranks)} in all ({source})"


def _of_machine(room: HostRoom, ranks: int) -> str:
    if room.free is None:
        return f"free host memory is not known ({room.why})"
    each = f", for {ranks} ranks" if ranks > 1 else ""
    return (
        f"this machine has {_gb(room.free)} free, limits of control groups counted, of which "
        f"SGLang leaves {_gb(RESERVE)}{each}"
    )


def _mixed(record: ServerArgs, config: TokenFlowConfig) -> str:
    if record.enable_mixed_chunk:
        return "on, by --enable-mixed-chunk"
    if config.mixed_chunk != "auto":
        return "off, by mixed_chunk in the tuning file"
    if record.speculative_algorithm is not None:
        return "off: a row of a prefill step verifies no drafts"
    if decodes_only(record):
        return "none: there are no prefills"
    return (
        "on under stress, as with --enable-mixed-chunk, where the prefill's graphs allow it: "
        "running streams decode in the same step as a prefill"
    )


def _gb(size: float) -> str:
    return f"{size / GB:,.1f} GB"
