"""Which kinds of models are served, and why others are not."""

from __future__ import annotations

from tokenflow_sgl.engine.refusal import Refusal, UnsupportedError
from tokenflow_sgl.engine.sglang.worker import ModelConfig


def kind_of_model(config: ModelConfig) -> dict[str, bool]:
    """What `refused_model` asks; config: SGLang's configuration of the model."""
    return {
        "is_generation": bool(config.is_generation),
        "is_deepseek_v41": getattr(config.hf_config, "model_type", None) == "deepseek_v41",
    }


def refused_model(*, is_generation: bool, is_deepseek_v41: bool = False) -> Refusal | None:
    """Why a model is not served: its KV cannot leave and come back whole; None: it can.

    Args:
        is_generation: It generates text.
        is_deepseek_v41: It is DeepSeek V4.1.
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
    return None


def check_model(**kind: bool) -> None:
    """Raise `UnsupportedError` for a model that is not served; kind: as of `refused_model`."""
    refusal = refused_model(**kind)
    if refusal is not None:
        raise UnsupportedError(refusal.sentence)
