"""The server: what it is, what it runs, and how its time passes.

Nothing here needs this package on the server, nor SGLang: what a server does not say stays unknown.
Only fields on a list are taken over, for a server's arguments may contain keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay.answers import ChatAnswer, ChunkError
from tokenflow_sgl.lab.replay.endpoints import ENDPOINTS, Ask
from tokenflow_sgl.lab.replay.prompts import ChatPrompts
from tokenflow_sgl.lab.replay.replay_options import ReplayError, TargetError
from tokenflow_sgl.lab.replay.stream import in_words

_TIMEOUT_S = 30.0
_MODEL_FIELDS = ("model_path", "served_model_name", "model_type", "weight_version")
_SERVER_FIELDS = (
    "version",
    "scheduler",
    "tp_size",
    "dp_size",
    "pp_size",
    "enable_dp_attention",
    "device",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "attention_backend",
    "mem_fraction_static",
    "max_total_num_tokens",
    "max_running_requests",
    "page_size",
    "chunked_prefill_size",
    "schedule_policy",
    "schedule_conservativeness",
    "enable_priority_scheduling",
    "disable_radix_cache",
    "disaggregation_mode",
    "disaggregation_transfer_backend",
    "disable_overlap_schedule",
    "enable_hierarchical_cache",
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "speculative_algorithm",
    "stream_interval",
    "incremental_streaming_output",
)
_DEVICE_FIELDS = (
    "device",
    "model",
    "source",
    "time_dilation",
    "virtual_time",
    "steps",
    "late_steps",
    "busy_seconds",
    "starved_seconds",
    "at_dilation",
)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, as far as it is known.

    Attributes:
        url: Its base URL.
        model: Name of the model that it serves; None: unknown.
        vocabulary: Number of token ids of the model; None: unknown.
        context: Tokens that a prompt and its answer may have together; None: unknown.
        time_scale: Wall-clock seconds per second of its device's clock; 1 on real devices.
        known: What it says of itself, for `RunInfo.target`.
        device: The emulated device, as it was then: `device`, `model`, `time_dilation`,
            `virtual_time`, `steps`, `late_steps`, `busy_seconds`, `starved_seconds`, `at_dilation`
            as far as told; empty on real ones.
        headers: Additional headers of every request. They may be secret and are stored nowhere.
    """

    url: str
    model: str | None = None
    vocabulary: int | None = None
    context: int | None = None
    time_scale: float = 1.0
    known: Mapping[str, Any] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def virtual(self) -> bool:
        """Whether its device runs on a virtual clock: it says when tokens come, not the client."""
        return bool(self.device.get("virtual_time"))

    @property
    def gpus(self) -> int | None:
        """GPUs that it serves with; None: it does not say its parallelism."""
        server = self.known.get("server", {})
        ranks: list[int] = [server.get(f"{name}_size", 1) for name in ("tp", "pp", "dp")]
        if "tp_size" not in server or not all(type(each) is int and each > 0 for each in ranks):
            return None
        # With DP attention the ranks of dp are those of tp.
        return math.prod(ranks[:2] if server.get("enable_dp_attention") else ranks)

    @property
    def handed_over(self) -> bool:
        """Whether it is a decode server without a prefill server, by SGLang's `fake` transfer."""
        server = self.known.get("server", {})
        mode, transfer = "disaggregation_mode", "disaggregation_transfer_backend"
        return (server.get(mode), server.get(transfer)) == ("decode", "fake")


async def find_target(url: str, *, api_key: str | None = None) -> Target:
    """Ask the server at `url` what it is.

    Args:
        url: Base URL, `http://host:port`.
        api_key: Sent as a bearer token with every request; None: nothing is sent.

    Raises:
        ReplayError: `url` is none; a TargetError if nothing answers there, or the server says of
            its time what cannot be.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    target = Target(url.rstrip("/"), headers=headers)
    async with open_session(target) as session:
        server = await get_json(session, target, "/server_info")
        model = await get_json(session, target, "/model_info")
        names = await get_json(session, target, "/v1/models")
        vocabulary = _vocabulary(server, model) or await _refused_vocabulary(session, target)
    device = emulated_device(server)
    known = {name: model[name] for name in _MODEL_FIELDS if name in model}
    arguments = {name: server[name] for name in _SERVER_FIELDS if name in server}
    arguments |= {name: server[name] for name in server if name.startswith("tokenflow_")}
    arguments |= _kv_memory(server)
    listed = names.get("data")
    first = listed[0] if isinstance(listed, list) and listed else {}
    return replace(
        target,
        model=model.get("served_model_name") or first.get("id"),
        vocabulary=vocabulary,
        context=_context(first.get("max_model_len"), server.get("context_length")),
        time_scale=float(device.get("time_dilation", 1.0)),
        known={**known, **({"server": arguments} if arguments else {})},
        device=device,
    )


async def words_to_tokens(target: Target, seed: int) -> tuple[float, float] | None:
    """What the server's tokenizer makes of chat text, by two short requests.

    Returns:
        Tokens per word, and tokens that the chat template adds; None where the server does not say.

    Raises:
        TargetError: It broke off, was silent, or sent what is no chunk of a chat.
    """
    sizes = (100, 300)
    counts: list[int] = []
    async with open_session(target) as session:
        for size in sizes:
            prompt = ChatPrompts(seed).burst(size, size)
            name = target.model or "default"
            ask = Ask(limit_tokens=1, model=name, handed_over=target.handed_over)
            body = ENDPOINTS[Api.chat].body(prompt, ask)
            try:
                count = await _prompt_tokens(session, target, body)
            except (aiohttp.ClientError, TimeoutError, ChunkError) as error:
                raise TargetError(
                    f"{target.url} failed at a short chat, which is to show how many tokens a word "
                    f"has: {in_words(error)}"
                ) from None
            if count is None:
                return None
            counts.append(count)
    few, many = counts
    per_word = (many - few) / (sizes[1] - sizes[0])
    return (per_word, few - per_word * sizes[0]) if per_word > 0 else None


async def _prompt_tokens(session: aiohttp.ClientSession, target: Target, body: bytes) -> int | None:
    """The prompt's length by the server's count; None where it does not answer or say."""
    answer = ChatAnswer()
    async with session.post(
        f"{target.url}{ENDPOINTS[Api.chat].path}",
        data=body,
        headers={"Content-Type": "application/json"},
    ) as response:
        if response.status != 200:
            return None
        async for line in response.content:
            if line.startswith(b"data:"):
                answer.take(line[5:].strip())
    return answer.prompt_tokens


def open_session(target: Target) -> aiohttp.ClientSession:
    """A session for questions to the server; its headers carry the target's."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    return aiohttp.ClientSession(headers=target.headers, timeout=timeout)


async def get_json(session: aiohttp.ClientSession, target: Target, path: str) -> dict[str, Any]:
    """The JSON object at a path; empty where the server has none there."""
    try:
        async with session.get(f"{target.url}{path}") as response:
            if response.status in (401, 403):
                raise TargetError(
                    f"{target.url} refuses this client (HTTP {response.status}): give it an API key"
                )
            if response.status != 200:
                return {}
            answer = await response.json(content_type=None)
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise ReplayError(
            f"url is {target.url!r}; allowed is http://HOST[:PORT] or https://..."
        ) from None
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        # What aiohttp says of a connection names its own settings; the cause is the system's.
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        raise TargetError(
            f"no server answers at {target.url} ({in_words(cause)}): is it up, and is this its URL?"
        ) from None
    except (aiohttp.ClientError, ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _kv_memory(server: Mapping[str, Any]) -> dict[str, float]:
    """Size of one rank's KV memory on the device, GB as SGLang counts them (2**30 bytes)."""
    states = server.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}
    usage = state.get("memory_usage") if isinstance(state, dict) else None
    size = usage.get("kvcache") if isinstance(usage, dict) else None
    return {"kv_cache_gb": size} if isinstance(size, int | float) and size > 0 else {}


def _context(*told: Any) -> int | None:
    """The first of what a server told that is a number of tokens."""
    return next((size for size in told if type(size) is int and size > 0), None)


def _vocabulary(*answers: Mapping[str, Any]) -> int | None:
    for answer in answers:
        size = answer.get("vocab_size")
        if isinstance(size, int) and size > 0:
            return size
    return None


async def _refused_vocabulary(session: aiohttp.ClientSession, target: Target) -> int | None:
    """Read the vocabulary's size from the refusal of an impossible token id.

    SGLang 0.5.23 states it nowhere else. The request is turned away before it is scheduled.
    """
    body = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1, "logit_bias": {"-1": 0.0}},
    }
    try:
        async with session.post(f"{target.url}/generate", json=body) as response:
            refusal = await response.text() if response.status == 400 else ""
    except (aiohttp.ClientError, TimeoutError):
        return None
    limits = re.search(r"logit_bias must ha\w+ keys in \[0, (\d+)\]", refusal)
    return None if limits is None else int(limits[1]) + 1


def emulated_device(server: Mapping[str, Any]) -> dict[str, Any]:
    """What `/server_info` says of an emulated device; empty on real ones.

    Raises:
        TargetError: It says of its time what cannot be.
    """
    states = server.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}
    device = state.get("emulated_device") if isinstance(state, dict) else None
    if not isinstance(device, dict):
        return {}
    dilation = device.get("time_dilation")
    if not (isinstance(dilation, int | float) and math.isfinite(dilation) and dilation > 0):
        raise TargetError(
            f"the server's emulated device has time_dilation {dilation!r}; "
            "allowed is a number above 0"
        )
    return {name: device[name] for name in _DEVICE_FIELDS if name in device}
