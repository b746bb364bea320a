"""The torch twins of kernels with recurrent states: how a prompt is cut must not show."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d, silu

from tokenflow_sgl_emulator.recurrent.state_seams import DELTA_RULE, RECURRENT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang warns on import that there is no GPU
    from tokenflow_sgl_emulator.recurrent import (
        delta_rule,
        short_convolution,
        state_hooks,
        state_pool,
    )

CHANNELS, WIDTH, SLOTS = 6, 4, 5


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def convolve(x: torch.Tensor, states: torch.Tensor, *, goes_on: bool, **given: Any) -> torch.Tensor:
    """One request, in slot 3."""
    return short_convolution.causal_conv1d_fn(
        x,
        made(CHANNELS, WIDTH, seed=1),
        made(CHANNELS, seed=2),
        states,
        torch.tensor([0, x.shape[1]]),
        [x.shape[1]],
        torch.tensor([3]),
        torch.tensor([goes_on]),
        **given,
    )


def test_a_convolution_is_torchs() -> None:
    x, states = made(CHANNELS, 9), torch.full((SLOTS, CHANNELS, WIDTH - 1), 7.0)
    before = torch.nn.functional.pad(x.double(), (WIDTH - 1, 0))
    weight, bias = made(CHANNELS, WIDTH, seed=1).double(), made(CHANNELS, seed=2).double()
    wanted = conv1d(before, weight[:, None], bias, groups=CHANNELS)
    assert torch.equal(convolve(x, states, goes_on=False, activation=None), wanted.float())
    assert torch.equal(convolve(x, states, goes_on=False), silu(wanted).float())
    assert torch.equal(states[3], x[:, -WIDTH + 1 :])
    assert (states[[0, 1, 2, 4]] == 7.0).all()


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_prompt_may_be_cut_and_decoded_token_by_token(cut: int) -> None:
    x = made(CHANNELS, 9)
    whole = torch.zeros(SLOTS, CHANNELS, WIDTH - 1)
    wanted = convolve(x, whole, goes_on=False)
    states = torch.zeros(SLOTS, CHANNELS, WIDTH - 1)
    parts = [convolve(x[:, :cut], states, goes_on=False)]
    parts += [
        short_convolution.causal_conv1d_update(
            x[None, :, token],
            states,
            made(CHANNELS, WIDTH, seed=1),
            made(CHANNELS, seed=2),
            "silu",
            conv_state_indices=torch.tensor([3]),
        ).T
        for token in range(cut, 9)
    ]
    assert torch.equal(torch.cat(parts, dim=1), wanted)
    assert torch.equal(states, whole)


def test_rows_that_only_pad_are_left_alone() -> None:
    states = torch.ones(SLOTS, CHANNELS, WIDTH - 1)
    slots = torch.tensor([-1, 2])
    weight = made(CHANNELS, WIDTH)
    short_convolution.causal_conv1d_update(
        made(2, CHANNELS), states, weight, conv_state_indices=slots
    )
    assert (states[[0, 1, 3, 4]] == 1.0).all() and not (states[2] == 1.0).all()
    starts = torch.tensor([0, 1, 2])
    short_convolution.causal_conv1d_fn(
        made(CHANNELS, 2), weight, None, states, starts, [1, 1], torch.tensor([-1, 1])
    )
    assert (states[[0, 3, 4]] == 1.0).all() and not (states[1] == 1.0).all()
    with pytest.raises(NotImplementedError, match="no states that are rings"):
        short_convolution.causal_conv1d_update(made(2, CHANNELS), states, weight)


KEYS, VALUES, HEADS = 3, 5, 4


def projections(tokens: int) -> dict[str, torch.Tensor]:
    g, beta = delta_rule.gating(
        made(HEADS, seed=1), made(tokens, HEADS, seed=2), made(tokens, HEADS, seed=3), made(HEADS)
    )
    return {
        "q": made(1, tokens, HEADS // 2, KEYS, seed=4),
        "k": made(1, tokens, HEADS // 2, KEYS, seed=5),
        "v": made(1, tokens, HEADS, VALUES, seed=6),
        "g": g,
        "beta": beta,
    }


def run(given: dict[str, torch.Tensor], span: slice, states: torch.Tensor) -> Any:
    part = {name: value[:, span] for name, value in given.items()}
    starts = torch.tensor([0, part["q"].shape[1]])
    return delta_rule.extend(
        None, **part, ssm_states=states, cache_indices=torch.tensor([3]), query_start_loc=starts
    )


@pytest.mark.parametrize("cut", [1, 64, 100])
def test_a_prompt_of_deltas_may_be_cut(cut: int) -> None:
    given = projections(130)
    whole = torch.zeros(SLOTS, HEADS, VALUES, KEYS)
    wanted, _, chunks = run(given, slice(0, 130), whole)
    states = torch.zeros_like(whole)
    first, _, _ = run(given, slice(0, cut), states)
    if cut == 64:
        assert torch.equal(chunks[0, 1], states[3])
    second, _, _ = run(given, slice(cut, 130), states)
    assert torch.equal(torch.cat([first, second], dim=1), wanted)
    assert torch.equal(states, whole)
    assert chunks.shape == (1, 3, HEADS, VALUES, KEYS)
    assert not chunks[0, 0].any()


def test_a_decoded_token_is_a_prompt_of_one() -> None:
    given = projections(2)
    prompt, decoded = (torch.ones(SLOTS, HEADS, VALUES, KEYS) for _ in range(2))
    wanted, _, _ = run(given, slice(0, 1), prompt)
    packed = torch.cat([given[name][0, :1].flatten(1) for name in ("q", "k", "v")], dim=1)
    got = delta_rule.packed_decode(
        None,
        packed,
        made(2, HEADS, seed=2)[:1],
        made(2, HEADS, seed=3)[:1],
        A_log=made(HEADS, seed=1),
        dt_bias=made(HEADS),
        scale=KEYS**-0.5,
        ssm_states=decoded,
        cache_indices=torch.tensor([3]),
        num_v_heads=HEADS,
        head_v_dim=VALUES,
    )
    assert torch.equal(got, wanted)
    assert torch.equal(decoded, prompt)


def test_what_is_written_is_read_again() -> None:
    """A delta rule that writes all, and forgets nothing, answers a key with its value."""
    states = torch.zeros(SLOTS, 1, VALUES, KEYS)
    key, value = made(1, 1, 1, KEYS), made(1, 1, 1, VALUES)
    for _ in range(2):  # the second time there is nothing left to correct
        out, _, _ = delta_rule.extend(
            None,
            key,
            key,
            value,
            torch.zeros(1, 1, 1),
            torch.ones(1, 1, 1),
            ssm_states=states,
            cache_indices=torch.tensor([0]),
            query_start_loc=torch.tensor([0, 1]),
        )
        assert torch.allclose(out * KEYS**0.5, value, atol=1e-4)


def test_projections_norm_and_gate() -> None:
    qkv, z, b, a = delta_rule.split_projections(made(2, 16), made(2, 4), 1, 2, 2, 3)
    assert torch.equal(torch.cat([qkv, z.flatten(1)], dim=1), made(2, 16))
    assert torch.equal(torch.cat([b, a], dim=1), made(2, 4))
    norm = SimpleNamespace(eps=0.0, activation="silu", weight=torch.full((3,), 2.0))
    x, z = made(2, 3), made(2, 3, seed=1)
    even = x / x.square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(delta_rule.gated_norm(norm, x, z), even * 2.0 * silu(z))
    norm.activation = "sigmoid"
    assert torch.allclose(delta_rule.gated_norm(norm, x, z), even * 2.0 * z.sigmoid())
    assert torch.allclose(delta_rule.gated(x, z[:, :, None]), x * z.sigmoid())


def test_only_marked_rows_are_tracked() -> None:
    conv, ssm = made(2, SLOTS, 3), made(2, SLOTS, 4)
    before = ssm.clone()
    marks, slots = torch.tensor([True, False, True]), torch.tensor([0, 1, 2])
    delta_rule.track_states(conv, ssm, slots, marks, torch.tensor([3, 4, 1]), 2)
    assert torch.equal(ssm[:, 3], before[:, 0]) and torch.equal(conv[:, 3], conv[:, 0])
    assert torch.equal(ssm[:, [0, 1, 2, 4]], before[:, [0, 1, 2, 4]]), "the third is no row"


def test_states_go_to_the_host_and_back() -> None:
    layers = [made(SLOTS, 3, seed=i) for i in range(2)]
    pool = SimpleNamespace(
        slot_state_device_tensors=[],
        layout="page_first",
        temporal_state_elem_size=0,
        conv_device_layers=[layers],
        conv_buffer=[torch.zeros(8, 2, 1, 3)],
    )
    wanted = [layer.clone() for layer in layers]
    host, device = torch.tensor([6, 7]), torch.tensor([1, 4])
    state_pool.backup_from_device_all_layer(pool, None, host, device)
    for layer in layers:
        layer[device] = 0.0
    for number in range(2):
        state_pool.load_to_device_per_layer(pool, None, host, device, number)
    assert all(torch.equal(*pair) for pair in zip(layers, wanted, strict=True))
    pool.layout = "layer_first"
    with pytest.raises(NotImplementedError, match="layer_first"):
        state_pool.backup_from_device_all_layer(pool, None, host, device)


def test_every_seam_of_states_has_a_twin() -> None:
    names = {seam.target.rpartition(".")[2] for seam in (*RECURRENT, *DELTA_RULE)}
    assert names == {*state_hooks._TWINS}


IMPORT_ALL = """
import sglang.srt.models.registry as registry
from sglang.srt.plugins.hook_registry import HookRegistry
from tokenflow_sgl_emulator import archs
from tokenflow_sgl_emulator.recurrent.state_seams import DELTA_RULE, RECURRENT
from tokenflow_sgl_emulator.recurrent.state_hooks import install_convolutions, install_delta_rule

classes = registry.import_model_classes(archs.PACKAGE, strict=True)
assert {"Lfm2ForCausalLM", "Qwen3_5ForCausalLM", "EmulatedForCausalLM"} <= classes.keys()
print(sum(seam.target in HookRegistry._hooks for seam in (*RECURRENT, *DELTA_RULE)))
for install in (install_delta_rule, install_convolutions, install_delta_rule):
    install()
print(*(len(HookRegistry._hooks[seam.target]) for seam in (*RECURRENT, *DELTA_RULE)))
from sglang.srt.models import lfm2, qwen3_5
print(lfm2.causal_conv1d_update_triton.__wrapped__.__module__)
print(qwen3_5.fused_sigmoid_mul.__wrapped__.__module__)
"""


@pytest.mark.slow  # imports SGLang and three of its models
def test_kernels_are_replaced_once_and_only_where_such_a_model_is_built() -> None:
    """SGLang imports every module of `archs` in every server."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_ALL],
        check=True,
        capture_output=True,
        text=True,
    )
    before, after, *kernels = run.stdout.splitlines()[-4:]
    assert before == "0"
    assert after.split() == ["1"] * len((*RECURRENT, *DELTA_RULE))
    assert all(kernel.startswith("sglang.kernels.ops.") for kernel in kernels)
    assert "Multiple" not in run.stderr
