"""When running streams may decode in the same step as a prefill."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.contract import Prefill
from tokenflow_sgl.engine import mixing
from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.mixing import Mixing
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.version import at_least


class DeepseekSparseAttnBackend:
    """Has the name of the one backend that must be told at the start."""


PLAIN: dict[str, Any] = {
    "graph": "disabled",
    "chunk": 2048,
    "asked": False,
    "backend": None,
    "align": None,
    "drafts": False,
    "sharing": False,
    "megamoe": False,
    "states": False,
}
"""A server that mixes steps."""


@pytest.fixture
def make(monkeypatch):
    def mixing_of(**given):
        of = SimpleNamespace(**{**PLAIN, **given})
        config = {name: given[name] for name in given.keys() - PLAIN.keys()}
        parallel = SimpleNamespace(
            enable_cp_tp_group_sharing=of.sharing, enable_megamoe_for_layernorm_sp=of.megamoe
        )
        monkeypatch.setattr(mixing, "get_parallel", lambda: parallel)
        phase = SimpleNamespace(prefill=SimpleNamespace(backend=of.graph))
        execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=phase))
        monkeypatch.setattr(mixing, "get_exec", lambda: execution)
        scheduler = SimpleNamespace(
            is_mixed_chunk=of.asked,
            chunked_prefill_size=of.chunk,
            chunked_req=None,
            truncation_align_size=of.align,
            spec_algorithm=SimpleNamespace(is_none=lambda: not of.drafts),
            tree_cache=SimpleNamespace(supports_mamba=lambda: of.states),
            tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=of.backend)),
        )
        return Mixing(scheduler, TokenFlowConfig(**config))

    return mixing_of


@pytest.mark.parametrize("graph", ["disabled", "breakable", "full"])
def test_steps_are_mixed_while_the_policy_decides_and_only_then(make, graph) -> None:
    mixing_of = make(graph=graph)
    assert mixing_of.mixes(policy_decides=True, decoding=8)
    assert not mixing_of.mixes(policy_decides=False, decoding=8)


@pytest.mark.parametrize(
    "obstacle",
    [
        {"mixed_chunk": "off"},
        {"chunk": None},
        {"drafts": True},
        {"graph": "tc_piecewise"},
        {"backend": DeepseekSparseAttnBackend()},
        {"sharing": True},
        pytest.param(
            {"megamoe": True},
            marks=pytest.mark.skipif(not at_least("0.5.23"), reason="that SGLang has no such step"),
        ),
    ],
)
def test_steps_are_not_mixed_where_that_is_not_possible(make, obstacle) -> None:
    assert not make(**obstacle).mixes(policy_decides=True, decoding=8)


def test_no_step_is_mixed_where_that_leaves_wrong_states(make, monkeypatch) -> None:
    monkeypatch.setattr(mixing, "MIXES_STATES", False)
    assert make().mixes(policy_decides=True, decoding=8)
    assert not make(states=True).mixes(policy_decides=True, decoding=8)
    with pytest.raises(UnsupportedError, match=r"--enable-mixed-chunk .* 0\.5\.23"):
        make(states=True, asked=True)
    monkeypatch.setattr(mixing, "MIXES_STATES", True)
    assert make(states=True).mixes(policy_decides=True, decoding=8)


def request(**given) -> SimpleNamespace:
    plain = {"return_logprob": False, "input_embeds": None, "beam_group": None}
    return SimpleNamespace(**{**plain, **given})


def test_streams_go_on_beside_a_prefill_that_sglang_mixes(make) -> None:
    mixing_of = make(asked=True)
    batch = SimpleNamespace(return_logprob=False, reqs=[request()])
    assert mixing_of.goes_on(batch, [request()])
    for other in ({"return_logprob": True}, {"input_embeds": [[0.0]]}):
        assert not mixing_of.goes_on(batch, [request(), request(**other)])
        mixing_of._scheduler.chunked_req = request(**other)
        assert not mixing_of.goes_on(batch, [request()])
        mixing_of._scheduler.chunked_req = None
    beams = SimpleNamespace(return_logprob=False, reqs=[request(beam_group=object())])
    assert not mixing_of.goes_on(beams, [request()])
    told = SimpleNamespace(return_logprob=True, reqs=[request()])
    assert not mixing_of.goes_on(told, [request()])
    assert not make().goes_on(batch, [request()]), "SGLang mixes no step now"


def test_decode_steps_come_first_where_nothing_decodes_beside_or_the_policy_insists(make) -> None:
    batch = SimpleNamespace(return_logprob=False, reqs=[request()], is_empty=lambda: False)
    mixed, apart = make(asked=True), make()
    for gate in (Prefill(), Prefill(limit=16)):
        assert not apart.holds(gate, batch, [request()])
    assert apart.holds(Prefill(hold=True), batch, [request()])
    assert not mixed.holds(Prefill(hold=True), batch, [request()])
    insists = Prefill(hold=True, hold_mixed=True)
    assert mixed.holds(insists, batch, [request()])
    batch.is_empty = lambda: True
    assert not mixed.holds(insists, batch, [request()])


def test_sglangs_own_option_is_kept(make) -> None:
    mixing_of = make(asked=True, mixed_chunk="off")
    assert mixing_of.mixes(policy_decides=True, decoding=8) and mixing_of.mixes(
        policy_decides=False, decoding=8
    )


@pytest.mark.parametrize(("decoding", "mixed"), [(0, True), (952, True), (953, False)])
def test_a_mixed_chunk_holds_a_piece_of_a_long_prompt(make, decoding, mixed) -> None:
    """SGLang rounds what the decoding rows leave of a chunk down to whole pieces: to none."""
    assert make(chunk=2000, align=1048).mixes(policy_decides=True, decoding=decoding) is mixed
    assert make(chunk=2000, align=1048, asked=True).mixes(policy_decides=True, decoding=decoding)
