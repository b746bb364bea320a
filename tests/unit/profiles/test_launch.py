"""What the CPU takes to launch a step is a lower limit of its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenflow_sgl.lab.profiles import DeviceProfile, Launch, ProfileError, load_profile
from tokenflow_sgl.lab.profiles.launch import EAGER_LAYER, PIECE_LAYER, default_launch
from tokenflow_sgl.lab.profiles.measured import Measurement


def test_a_prefill_takes_at_least_its_launch(small: DeviceProfile) -> None:
    slow = replace(small, launch=Launch(prefill=0.05))
    assert small.prefill_seconds(1, 1.0) == pytest.approx(0.0225)
    assert slow.prefill_seconds(1, 1.0) == 0.05
    assert slow.prefill_seconds(0, 0.0) == 0.0
    # It is not added to what the device computes.
    assert slow.prefill_seconds(40, 550.0) == small.prefill_seconds(40, 550.0)


def test_a_mixed_step_is_launched_as_a_prefill(small: DeviceProfile) -> None:
    slow = replace(small, launch=Launch(prefill=0.05, decode=9.0))
    assert slow.mixed_seconds(0, 0.0, 3, 21) == 0.05
    assert slow.mixed_seconds(40, 550.0, 3, 21) == small.mixed_seconds(40, 550.0, 3, 21)


def test_decode_steps_are_one_graph_up_to_so_many_rows(small: DeviceProfile) -> None:
    slow = replace(small, launch=Launch(decode=0.05, graph_rows=3))
    assert slow.decode_seconds(3, 21) == small.decode_seconds(3, 21)
    assert slow.decode_seconds(4, 28) == 0.05


def test_defaults_go_by_layers_and_memory() -> None:
    assert default_launch(32, 48) == Launch(32 * PIECE_LAYER, 32 * EAGER_LAYER, 48)
    without = default_launch(32, 48, prefill_graphs=False)
    assert without.prefill == without.decode == 32 * EAGER_LAYER
    assert load_profile("rtx4090", "llama3-8b").launch == default_launch(32, 48)


def test_refuses_less_than_nothing() -> None:
    with pytest.raises(ProfileError, match=r"launch: decode is -0.1; allowed is 0 or more"):
        Launch(decode=-0.1)


def test_it_is_fitted_to_eager_steps() -> None:
    from tokenflow_sgl.lab.profiles.fit import fit
    from tokenflow_sgl.lab.profiles.model_shapes import MODELS

    needed = [
        Measurement(line, kind, batch, tokens, context, seconds)
        for line, (kind, batch, tokens, context, seconds) in enumerate(
            [
                *(("decode", batch, 0, context, 0.005) for batch in (1, 64) for context in (1, 9)),
                *(("prefill", 1, tokens, 0, tokens * 1e-4) for tokens in (100, 1000)),
                *((kind, 0, n, 0, n * 1e-6) for kind in ("load", "store") for n in (100, 1000)),
            ]
        )
    ]
    eager = [
        Measurement(0, "eager", batch, 0, 9, seconds) for batch, seconds in ((1, 0.01), (64, 0.011))
    ]
    whole = {"device": "own", "model": MODELS["llama3-8b"], "memory": 80 << 30, "source": "here"}
    found, _ = fit([*needed, *eager], **whole)  # type: ignore[arg-type]
    assert found.launch == Launch(decode=0.01, graph_rows=256)
    found, _ = fit(needed, **whole)  # type: ignore[arg-type]
    assert found.launch == Launch()
