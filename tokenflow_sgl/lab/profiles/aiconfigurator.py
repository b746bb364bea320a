"""Step times from aiconfigurator-core: kernels that NVIDIA measured under SGLang, added up.

The package (Apache-2.0) holds times of matrix products and attention kernels by device and SGLang
version, and interpolates between them. What is asked of it here, in its own terms: ``isl`` is the
whole length of a request, its cached prefix included; times are in ms.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.model_shapes import Model
from tokenflow_sgl.lab.profiles.monotone import non_decreasing, rows
from tokenflow_sgl.lab.profiles.table_cache import StepTimes, kept
from tokenflow_sgl.lab.profiles.tables import DecodeTable, PrefillTable
from tokenflow_sgl.pip_hints import pip_install

if TYPE_CHECKING:
    from aiconfigurator_core.sdk.engine import EngineHandle

BACKEND = "sglang"
_PACKAGE = "aiconfigurator_core"
_DISTRIBUTION = "aiconfigurator-core"

# Matrix products get slower by a jump, up to 40 %, where the rows need one more tile. Both sides
# of each such edge are grid points, so that no cell reaches across one.
_EDGES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896)
_LATE_EDGES = (*range(1024, 8192, 256), *range(8192, 16384, 1024))
_BATCH = sorted({*range(1, 17), 20, 24, 28, *_EDGES, *(edge + 1 for edge in _EDGES), 1024})
_TOKENS = sorted(
    {1, 2, 4, 8, 12, 16, 24, 16384}
    | {edge + side for edge in (*_EDGES, *_LATE_EDGES) for side in (0, 1)}
)
_CONTEXT = (
    *(1, 16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288),
    *(16384, 32768, 65536, 131072),
)
# Begins with requests of 64 tokens: hundreds of still shorter ones in a step cost more by their
# number than by their attention, which a table over the mean attention cannot tell.
_ATTENDED = (
    *(32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    *(32768, 65536, 131072),
)


def step_times(model: Model, system: str, ranks: int = 1) -> StepTimes:
    """Step times of a model on a device of `system`, or a group of `ranks`; kept for the next time.

    Raises:
        ProfileError: The package is not installed.
    """

    def make() -> StepTimes:
        decode, prefill = tables(engine(model, system, ranks))
        return StepTimes(decode, prefill, source(system, ranks))

    asked = {"model": _config(model), "system": system, "ranks": ranks}
    return kept(_DISTRIBUTION, asked, Path(__file__).parent, make)


def engine(model: Model, system: str, ranks: int = 1) -> EngineHandle:
    """aiconfigurator-core's engine for a model on one device of `system`, or a group of `ranks`.

    The ranks share each layer, and each expert of one (tensor parallelism).

    Raises:
        ProfileError: The package is not installed.
    """
    with _quiet():
        try:
            from aiconfigurator_core.sdk.engine import EngineHandle
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != _PACKAGE:
                raise
            raise ProfileError(
                "Step times of this device come from aiconfigurator-core, which is not installed: "
                f"{pip_install(_PACKAGE)}."
            ) from None
        # By its shape and not by its name: that works for models that the package does not list.
        with tempfile.TemporaryDirectory(prefix="tokenflow-") as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_config(model)))
            return EngineHandle.compile(folder, system, BACKEND, tp_size=ranks, moe_tp_size=ranks)


def tables(handle: EngineHandle) -> tuple[DecodeTable, PrefillTable]:
    """Step times of a device and model on our grids, made non-decreasing."""
    decode = np.array(
        [[handle.predict_decode_latency(batch, n) for n in _CONTEXT] for batch in _BATCH]
    )
    prefill = np.array([[_prefill(handle, n, mean) for mean in _ATTENDED] for n in _TOKENS])
    return (
        DecodeTable(
            batch=tuple(map(float, _BATCH)),
            context=tuple(map(float, _CONTEXT)),
            seconds=rows(non_decreasing(decode / 1e3)),
        ),
        PrefillTable(
            tokens=tuple(map(float, _TOKENS)),
            attended=tuple(map(float, _ATTENDED)),
            seconds=rows(non_decreasing(prefill / 1e3)),
        ),
    )


def source(system: str, ranks: int = 1) -> str:
    """Where these times come from, in words, with versions."""
    from aiconfigurator_core.sdk.perf_database import get_latest_database_version

    with _quiet():
        version = get_latest_database_version(system, BACKEND)
    package = importlib.metadata.version(_DISTRIBUTION)
    what = f"{system}, {ranks} of them with their all-reduces" if ranks > 1 else system
    return f"aiconfigurator-core {package}: {what}, kernels measured under SGLang {version}"


def _prefill(handle: EngineHandle, tokens: int, attended: float) -> float:
    """Milliseconds of a prefill of `tokens` that attend to `attended` keys on average."""
    ask: Callable[[int, int, int], float] = handle.predict_prefill_latency
    if attended >= tokens / 2:
        prefix = round(attended - tokens / 2)
        return ask(1, tokens + prefix, prefix)

    # Fewer keys than even one request without a prefix has: so many equal requests. Their number
    # is rarely whole, so the two nearest are interpolated.
    def saved(requests: int) -> float:
        """Seconds by which `requests` equal parts are faster than one request of all tokens."""
        length = tokens // requests
        whole = requests * length  # matrix products of both have this size, and cancel out
        return (ask(requests, length, 0) - ask(1, whole, 0)) * tokens / whole

    few = int(tokens / (2 * attended))
    high, low = tokens / (2 * few), tokens / (2 * (few + 1))
    share = (attended - low) / (high - low)
    return ask(1, tokens, 0) + share * saved(few) + (1.0 - share) * saved(few + 1)


def _config(model: Model) -> dict[str, object]:
    """The model as the ``config.json`` that the package reads."""
    experts = {
        "num_experts": model.experts,
        "num_experts_per_tok": model.experts_per_token,
        "moe_intermediate_size": model.intermediate,
    }
    return {
        **(experts if model.experts > 1 else {}),
        "architectures": [model.architecture],
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the package's remarks about tables that no dense model uses; errors still raise."""
    logger = logging.getLogger(_PACKAGE)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
