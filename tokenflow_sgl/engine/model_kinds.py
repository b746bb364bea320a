"""Which kinds of models are served, and why others are not."""

from __future__ import annotations

from tokenflow_sgl.engine.refusal import Refusal, UnsupportedError
from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.engine.sglang.worker import ModelConfig


def kind_of_model(config: ModelConfig) -> dict[str, bool]:
    """What `refused_model` asks; config: SGLang's configuration of the model."""
    kind = getattr(config.hf_config, "model_type", None)
    return {
        "is_generation": bool(config.is_generation),
        "is_deepseek_v41": kind == "deepseek_v41",
        "is_deepseek_v4": kind == "deepseek_v4",
        "has_windows": bool(config.is_hybrid_swa),
    }


def refused_model(
    *,
    is_generation: bool,
    is_deepseek_v41: bool = False,
    is_deepseek_v4: bool = False,
    has_windows: bool = False,
) -> Refusal | None:
    """Why a model is not served: its KV cannot leave and come back whole; None: it can.

    Args:
        is_generation: It generates text.
        is_deepseek_v41: It is DeepSeek V4.1.
        is_deepseek_v4: It is DeepSeek V4.
        has_windows: Some of its layers have sliding windows, and memory of their own.
    """
    if not is_generation:
        return Refusal(
            "embedding model",
            "--scheduler tokenflow serves generation models; this is an embedding model, "
            "start it without the flag.",
        )
    if is_deepseek_v41:
        return Refusal(
            "DeepSeek V4.1",
            "--scheduler tokenflow does not serve DeepSeek V4.1: replays of its prompts' ends have "
            "not been tried; start without the flag.",
        )
    if is_deepseek_v4 and not at_least("0.5.23"):
        return Refusal(
            "DeepSeek V4",
            "--scheduler tokenflow serves DeepSeek V4 on SGLang 0.5.23 or later: on this one it "
            "was not proved; install that version or start without the flag.",
        )
    # Found by the attackers. There SGLang's `cache_unfinished_req` looks up again what it has just
    # inserted, and where windows end that search early it leaves the rest to be evicted.
    if has_windows and not at_least("0.5.23"):
        return Refusal(
            "sliding windows",
            "--scheduler tokenflow serves models with sliding windows on SGLang 0.5.23 or later: "
            "on this one KV of a stream that goes on after a pause can be evicted; install that "
            "version, or start with --disable-hybrid-swa-memory or without the flag.",
        )
    return None


def check_model(**kind: bool) -> None:
    """Raise `UnsupportedError` for a model that is not served; kind: as of `refused_model`."""
    refusal = refused_model(**kind)
    if refusal is not None:
        raise UnsupportedError(refusal.sentence)
