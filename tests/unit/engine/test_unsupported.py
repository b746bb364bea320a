"""What the scheduler refuses to serve, each with its reason in one sentence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.model_kinds import check_model, kind_of_model
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang import version
from tokenflow_sgl.engine.unsupported import (
    check_contiguity,
    check_options,
    check_restore,
    check_speculation,
    refused_options,
    undisturbed_reason,
)


@pytest.fixture(autouse=True)
def newest(monkeypatch) -> None:
    """What is refused on older releases says so in tests of its own."""
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.23")


# SGLang's defaults of the options that exclude the scheduler, and a value that does.
PLAIN = {
    "use_ray": False,
    "pp_size": 1,
    "disable_radix_cache": False,
    "enable_hisparse": False,
    "enable_pdmux": False,
    "encoder_only": False,
    "dllm_algorithm": None,
    "enable_lmcache": False,
    "enable_flexkv": False,
    "radix_cache_backend": None,
    "enable_session_radix_cache": False,
    "hicache_host_memory_mode": "cache",
}
EXCLUDED = {
    "pp_size": 2,
    "dllm_algorithm": "LowConfidence",
    "radix_cache_backend": "other",
    "hicache_host_memory_mode": "buffer_only",
}


def assert_one_sentence(message: str) -> None:
    assert message.endswith(".")
    assert ". " not in message
    assert "\n" not in message


def test_sglangs_defaults_are_served() -> None:
    check_options(SimpleNamespace(**PLAIN, anything_else=True))


def test_options_that_this_sglang_does_not_know_are_no_obstacle() -> None:
    check_options(SimpleNamespace())


@pytest.mark.parametrize("name", PLAIN)
def test_an_option_that_excludes_the_scheduler_is_named(name) -> None:
    value = EXCLUDED.get(name, True)
    with pytest.raises(UnsupportedError) as caught:
        check_options(SimpleNamespace(**{**PLAIN, name: value}))
    message = str(caught.value)
    shown = "--" + name.replace("_", "-")
    assert message.startswith(f"--scheduler tokenflow does not work with {shown} {value}: ")
    assert message.endswith("; remove one of the two.")
    assert_one_sentence(message)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("disaggregation_decode_enable_radix_cache", True),
        ("disaggregation_decode_enable_offload_kvcache", True),
        ("disaggregation_decode_host_receive_threshold", 0.5),
        ("disaggregation_decode_retraction_backup", "none"),
        ("enable_pd_role_switch", True),
        ("pp_size", 2),
    ],
)
def test_a_decode_server_has_options_of_its_own(monkeypatch, name, value) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.23")
    decodes = {**PLAIN, "disaggregation_mode": "decode"}
    # What a user says about the tree is no obstacle there.
    check_options(SimpleNamespace(**{**decodes, "disable_radix_cache": True}))
    check_options(SimpleNamespace(**decodes, disaggregation_decode_retraction_backup="host_pool"))
    with pytest.raises(UnsupportedError) as caught:
        check_options(SimpleNamespace(**{**decodes, name: value}))
    message = str(caught.value)
    shown = "--" + name.replace("_", "-")
    assert message.startswith(f"--scheduler tokenflow does not work with {shown} {value}: ")
    assert_one_sentence(message)


def test_a_decode_server_needs_an_sglang_that_passes_the_attacks(monkeypatch) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.22")
    with pytest.raises(UnsupportedError, match=r"--disaggregation-mode decode on this") as caught:
        check_options(SimpleNamespace(**PLAIN, disaggregation_mode="decode"))
    assert_one_sentence(str(caught.value))
    check_options(SimpleNamespace(**PLAIN, disaggregation_mode="prefill"))


def test_there_are_no_copies_to_group_on_a_decode_server() -> None:
    decodes = SimpleNamespace(disaggregation_mode="decode", enable_hierarchical_cache=False)
    with pytest.raises(UnsupportedError, match=r"^block_groups ") as caught:
        check_contiguity(decodes, TokenFlowConfig(block_groups=True))
    assert_one_sentence(str(caught.value))


def test_nothing_is_restored_on_a_decode_server() -> None:
    decodes = SimpleNamespace(disaggregation_mode="decode", enable_hierarchical_cache=True)
    with pytest.raises(UnsupportedError, match="--tokenflow-restore does not work") as caught:
        check_restore(decodes)
    assert_one_sentence(str(caught.value))


SPECULATES = {
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 1,
    "speculative_adaptive": False,
    "enable_multi_layer_eagle": False,
    "enable_mixed_chunk": False,
}
"""Of a launch with drafts, whether SGLang has resolved it or not."""


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE", None])
@pytest.mark.parametrize(("topk", "page"), [(1, 64), (None, None), (4, 1), (4, None)])
def test_drafts_are_served(algorithm, topk, page) -> None:
    """In chains; and in trees, unless a page has several tokens. An unknown size is one."""
    given = {"speculative_algorithm": algorithm, "speculative_eagle_topk": topk}
    check_options(SimpleNamespace(**PLAIN, page_size=page, **{**SPECULATES, **given}))
    check_speculation(SimpleNamespace(**{**SPECULATES, **given}), page or 1)


def test_trees_of_drafts_in_pages_of_several_tokens_are_refused() -> None:
    trees = {**SPECULATES, "speculative_eagle_topk": 4}
    with pytest.raises(UnsupportedError) as caught:
        check_options(SimpleNamespace(**PLAIN, page_size=16, **trees))
    shown = "--speculative-eagle-topk 4 with --page-size 16"
    assert str(caught.value).startswith(f"--scheduler tokenflow does not work with {shown}: ")
    assert_one_sentence(str(caught.value))
    with pytest.raises(UnsupportedError, match=shown):
        check_speculation(SimpleNamespace(**trees), 16)


@pytest.mark.parametrize(
    "given",
    [
        {"speculative_algorithm": "DFLASH"},
        {"speculative_adaptive": True},
        {"enable_multi_layer_eagle": True},
        {"enable_mixed_chunk": True},
    ],
)
def test_other_drafts_are_refused(given) -> None:
    ((name, value),) = given.items()
    with pytest.raises(UnsupportedError) as caught:
        check_options(SimpleNamespace(**PLAIN, **{**SPECULATES, **given}))
    message = str(caught.value)
    shown = "--" + name.replace("_", "-")
    assert message.startswith(f"--scheduler tokenflow does not work with {shown} {value}: ")
    assert_one_sentence(message)
    with pytest.raises(UnsupportedError, match="does not work with"):
        check_speculation(SimpleNamespace(**{**SPECULATES, **given}), 1)


def test_contiguous_copies_of_drafts_are_refused() -> None:
    config = TokenFlowConfig(block_groups=True)
    drafts = SimpleNamespace(**SPECULATES, enable_hierarchical_cache=True)
    ours = r"^block_groups \(--tokenflow-tuning\) does not work"
    with pytest.raises(UnsupportedError, match=ours) as caught:
        check_contiguity(drafts, config)
    assert_one_sentence(str(caught.value))
    check_contiguity(drafts, TokenFlowConfig())
    check_contiguity(SimpleNamespace(enable_hierarchical_cache=True), config)


def test_options_of_drafts_are_no_obstacle_without_drafts() -> None:
    plain = {**SPECULATES, "speculative_algorithm": None, "enable_mixed_chunk": True}
    check_options(SimpleNamespace(**PLAIN, **plain))


def test_prefills_that_dp_ranks_delay_together_are_refused() -> None:
    check_options(SimpleNamespace(**PLAIN, enable_prefill_delayer=True))
    with pytest.raises(UnsupportedError, match="--enable-prefill-delayer with DP") as caught:
        check_options(
            SimpleNamespace(**PLAIN, enable_prefill_delayer=True, tp_size=2, attn_dp_size=2)
        )
    assert_one_sentence(str(caught.value))


def test_drafts_beside_dp_attention_are_served() -> None:
    check_options(SimpleNamespace(**{**PLAIN, **SPECULATES, "tp_size": 2, "attn_dp_size": 2}))


def test_drafts_are_refused_on_an_sglang_with_which_they_were_not_tried(monkeypatch) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.22")
    check_speculation(SimpleNamespace(**PLAIN), 1)
    with pytest.raises(UnsupportedError, match=r"SGLang 0\.5\.23 and later") as caught:
        check_speculation(SimpleNamespace(**{**PLAIN, **SPECULATES}), 1)
    assert_one_sentence(str(caught.value))


def test_trees_of_ngram_are_served() -> None:
    """SGLang calls their widest level topk, and mixes no steps whatever was asked for."""
    trees = {"speculative_algorithm": "NGRAM", "speculative_eagle_topk": 10}
    check_speculation(SimpleNamespace(**{**SPECULATES, **trees, "enable_mixed_chunk": True}), 64)


def test_an_ordinary_generation_model_is_served(monkeypatch) -> None:
    check_model(is_generation=True)
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.23")
    check_model(is_generation=True, is_deepseek_v4=True)
    check_model(is_generation=True, has_windows=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"is_generation": False}, "embedding model"),
        ({"is_deepseek_v41": True}, "DeepSeek V4.1"),
        ({"is_deepseek_v4": True}, "DeepSeek V4 on SGLang 0.5.23 or later"),
        ({"has_windows": True}, "sliding windows on SGLang 0.5.23 or later"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(monkeypatch, given, said) -> None:
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.22")
    kind = {"is_generation": True, **given}
    with pytest.raises(UnsupportedError, match=said) as caught:
        check_model(**kind)
    assert_one_sentence(str(caught.value))


def request(**given) -> SimpleNamespace:
    values = {
        "beam_group": None,
        "return_hidden_states": False,
        "return_routed_experts": False,
        "return_indexer_topk": False,
        "return_sampling_mask": False,
        "session": None,
        "input_embeds": None,
        "multimodal_inputs": None,
        "return_logprob": False,
        "logprob_start_len": -1,
        "origin_input_ids": [1, 2, 3],
    }
    return SimpleNamespace(**{**values, **given})


def test_an_ordinary_request_can_be_preempted() -> None:
    assert undisturbed_reason(request()) is None


@pytest.mark.parametrize(
    "given",
    [
        {"beam_group": object()},
        {"return_hidden_states": True},
        {"return_routed_experts": True},
        {"return_indexer_topk": True},
        {"return_sampling_mask": True},
        {"session": object()},
        {"input_embeds": [[0.5]]},
        {"multimodal_inputs": object()},
        {"return_logprob": True, "logprob_start_len": 0},
        {"return_logprob": True, "logprob_start_len": 2},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_request_that_cannot_be_resumed_is_left_undisturbed(given) -> None:
    reason = undisturbed_reason(request(**given))
    assert reason
    assert len(reason.split()) >= 4


# -1 and the end of the prompt both mean: output tokens only.
@pytest.mark.parametrize("start", [-1, 3, 10])
def test_log_probabilities_of_the_output_do_not_hinder(start) -> None:
    assert undisturbed_reason(request(return_logprob=True, logprob_start_len=start)) is None


@pytest.mark.parametrize(
    "given",
    [{"enable_dp_attention": True, "dp_size": 4}, {"attn_dp_size": 4}],
    ids=["old spelling", "present spelling"],
)
def test_attention_in_data_parallel_ranks_is_served_where_each_decides_alone(given) -> None:
    check_options(SimpleNamespace(**PLAIN, **given, tp_size=4))
    shown = r"DP attention in 4 groups of 2 ranks: only"
    with pytest.raises(UnsupportedError, match=shown) as caught:
        check_options(SimpleNamespace(**PLAIN, **given, tp_size=8))
    assert_one_sentence(str(caught.value))


def test_data_parallel_replicas_may_have_several_ranks() -> None:
    check_options(SimpleNamespace(**PLAIN, dp_size=2, tp_size=4))


def test_all_that_stands_in_the_way_is_listed() -> None:
    args = SimpleNamespace(pp_size=2, disable_radix_cache=True, attn_dp_size=2, tp_size=4)
    found = [refusal.subject for refusal in refused_options(args)]
    assert found == ["--pp-size", "--disable-radix-cache", "--enable-dp-attention"]


def test_kinds_of_models_are_read_from_their_configurations() -> None:
    def kind(arch: str, model_type: str) -> set[str]:
        config = SimpleNamespace(architectures=[arch], model_type=model_type)
        found = kind_of_model(
            SimpleNamespace(is_generation=True, hf_config=config, is_hybrid_swa=False)
        )
        return {name for name, holds in found.items() if holds} - {"is_generation"}

    assert kind("DeepseekV4ForCausalLM", "deepseek_v4") == {"is_deepseek_v4"}
    assert kind("DeepseekV4ForCausalLM", "deepseek_v41") == {"is_deepseek_v41"}
    assert kind("LlamaForCausalLM", "llama") == set()
    plain = SimpleNamespace(model_type="gemma3")
    assert kind_of_model(
        SimpleNamespace(is_generation=True, hf_config=plain, is_hybrid_swa=True)
    ) == {
        "is_generation": True,
        "is_deepseek_v41": False,
        "is_deepseek_v4": False,
        "has_windows": True,
    }
