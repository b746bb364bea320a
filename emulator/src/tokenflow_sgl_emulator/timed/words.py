"""Whether the emulated device computes a real model's words, and what that asks of SGLang."""

import json
import os
from pathlib import Path

WORDS_VARIABLE = "TOKENFLOW_EMU_WORDS"
"""Set to 1 where the model's weights are computed, and its KV is moved."""
ARCHITECTURES = {"LlamaForCausalLM": "TimedLlamaForCausalLM"}
"""Of models that can be served: what SGLang loads in their place."""


def words_are_real() -> bool:
    """Whether what the device says is computed, and not made up."""
    return os.environ.get(WORDS_VARIABLE) == "1"


def words_arguments(folder: Path, layers: int) -> tuple[str, ...]:
    """Arguments of SGLang's launcher for a model with weights.

    Args:
        folder: Of the model.
        layers: Of the device's profile.

    Raises:
        ValueError: It cannot be served in the time of this device.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        (named,), has = config["architectures"], config["num_hidden_layers"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--words is {str(folder)!r}, which is no folder of a model") from error
    if named not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise ValueError(f"--words has the architecture {named!r}; allowed is {allowed}")
    if has != layers:
        raise ValueError(
            f"--words has {has} layers, and the profile is of {layers}: allowed are as many"
        )
    override = json.dumps({"architectures": [ARCHITECTURES[named]]})
    return (
        *("--model-path", str(folder), "--json-model-override-args", override),
        *("--load-format", "safetensors", "--dtype", "float32"),
    )
