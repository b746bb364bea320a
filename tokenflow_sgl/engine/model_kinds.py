"""Which kinds of models are served, and why others are not."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.unsupported import Refusal, UnsupportedError


def kind_of_model(config: Any, *, drafts: bool, decodes: bool) -> dict[str, bool]:
    """What `refused_model` asks.

    Args:
        config: SGLang's configuration of the model.
        drafts: Whether drafts are verified.
        decodes: Whether this is the decode server of a disaggregated pair.
    """
    # Late: launches are judged before SGLang is imported.
    from sglang.srt.configs.model_config import is_deepseek_v4

    return {
        "is_generation": bool(config.is_generation),
        "is_deepseek_v41": getattr(config.hf_config, "model_type", None) == "deepseek_v41",
        "deepseek_v4_decodes_drafts": decodes and drafts and bool(is_deepseek_v4(config.hf_config)),
    }


def refused_model(
    *,
    is_generation: bool,
    is_deepseek_v41: bool = False,
    deepseek_v4_decodes_drafts: bool = False,
) -> Refusal | None:
    """Why a model is not served: its KV cannot leave and come back whole; None: it can.

    Args:
        is_generation: It generates text.
        is_deepseek_v41: It is DeepSeek V4.1.
        deepseek_v4_decodes_drafts: It is DeepSeek V4, on the decode server of a disaggregated pair,
            and drafts are verified.
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
    if deepseek_v4_decodes_drafts:
        return Refusal(
            "DeepSeek V4 with speculation on a decode server",
            "--scheduler tokenflow does not serve DeepSeek V4 with speculation on the decode "
            "server of a disaggregated pair: copies of paused streams that have drafts' KV and "
            "states, too, have not been tried; start without one of the two.",
        )
    return None


def check_model(**kind: bool) -> None:
    """Raise `UnsupportedError` for a model that is not served; kind: as of `refused_model`."""
    refusal = refused_model(**kind)
    if refusal is not None:
        raise UnsupportedError(refusal.sentence)
