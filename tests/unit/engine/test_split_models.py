"""Which models' prefills can be split into layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine.layerwise_settings import (
    LAYERWISE_ATTRIBUTE,
    LayerwiseSettings,
)
from tokenflow_sgl.engine.restore.split_prefill import layers_of

LAYERS = 6


class Model:
    """One that SGLang can compute some layers at a time."""

    def __init__(self, layer: Any) -> None:
        self.model = SimpleNamespace(layers=[layer])

    def forward_split_prefill(self) -> None: ...


class Whole:
    """One that it cannot."""


def scheduler(model: Any, *, sharded: bool = False, **flags: Any) -> Any:
    runner = SimpleNamespace(
        model=model,
        model_config=SimpleNamespace(num_hidden_layers=LAYERS),
        attn_tp_sequence_sharded=lambda tokens: sharded,
    )
    options = SimpleNamespace(pp_size=1, enable_two_batch_overlap=False)
    made = SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=runner),
        server_args=options,
        require_mlp_sync=False,
        enable_lora=False,
    )
    for name, value in flags.items():
        setattr(options if hasattr(options, name) or name.startswith("_") else made, name, value)
    return made


PLAIN = Model(SimpleNamespace(attn_boundary="hands state over"))
PLACED = LayerwiseSettings("auto", 2.0)


def test_a_plain_model_can() -> None:
    assert layers_of(scheduler(PLAIN)) == LAYERS


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Whole(), {}),
        (Model(SimpleNamespace()), {}),
        (PLAIN, {"sharded": True}),
        (PLAIN, {"pp_size": 2}),
        (PLAIN, {"require_mlp_sync": True}),
        (PLAIN, {"enable_lora": True}),
        (PLAIN, {"enable_two_batch_overlap": True}),
        (PLAIN, {LAYERWISE_ATTRIBUTE: PLACED}),
    ],
)
def test_others_cannot(model, what) -> None:
    assert layers_of(scheduler(model, **what)) == 0
