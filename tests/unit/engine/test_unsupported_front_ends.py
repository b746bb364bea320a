"""Front ends without our part are refused at the start, each with its reason in one sentence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.config import TokenFlowConfig, build, config_of
from tokenflow_sgl.engine.flags import attach
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.unsupported_front_ends import check_app, check_deposits


def assert_one_sentence(message: str) -> None:
    assert message.endswith(".")
    assert ". " not in message
    assert "\n" not in message


def record(**given: object) -> SimpleNamespace:
    return SimpleNamespace(enable_hierarchical_cache=False, **given)


def test_tokenizer_workers_serve_our_application_or_none() -> None:
    several, one = SimpleNamespace(tokenizer_worker_num=2), SimpleNamespace(tokenizer_worker_num=1)
    for args, named in ((several, None), (several, "ours:app"), (one, "other:app")):
        check_app(args, named, "ours:app")
    with pytest.raises(UnsupportedError, match="APP_PATH=other:app: rates are") as caught:
        check_app(several, "other:app", "ours:app")
    assert_one_sentence(str(caught.value))


def test_tokenizer_workers_that_cannot_serve_ours_are_refused() -> None:
    check_app(SimpleNamespace(tokenizer_worker_num=1), None, None)
    with pytest.raises(
        UnsupportedError, match=r"tokenizer-worker-num .* before 0\.5\.23"
    ) as caught:
        check_app(SimpleNamespace(tokenizer_worker_num=2), None, None)
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize(("value", "refused"), [("1", True), ("true", True), ("0", False)])
def test_the_server_in_rust_is_refused(monkeypatch, value, refused) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", value)
    args = record()
    if not refused:
        return attach(args, TokenFlowConfig())
    with pytest.raises(UnsupportedError, match="does not work with SGLANG_RUST_SERVER=1") as caught:
        attach(args, TokenFlowConfig())
    assert_one_sentence(str(caught.value))
    assert config_of(args) is None


def test_the_server_in_rust_may_prefill_for_others(monkeypatch) -> None:
    """SGLang's own scheduler serves it."""
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    attach(record(disaggregation_mode="prefill"), TokenFlowConfig())


@pytest.mark.parametrize("mode", ["smg_grpc_mode", "grpc_mode"])
def test_deposits_are_refused_where_nothing_delivers_them(mode, tmp_path) -> None:
    attach(record(**{mode: True}), TokenFlowConfig())
    attach(record(**{mode: False}), TokenFlowConfig(deposit=True))
    with pytest.raises(UnsupportedError, match="--tokenflow-deposit does not work with") as caught:
        attach(record(**{mode: True}), TokenFlowConfig(deposit=True))
    assert "--" + mode.replace("_", "-") in str(caught.value)
    assert_one_sentence(str(caught.value))
    classes = tmp_path / "classes.toml"
    classes.write_text("[classes.even]\nrate = 15\ndeposit = true\n")
    with pytest.raises(UnsupportedError, match="deposit = true of the class even does") as caught:
        check_deposits(record(**{mode: True}), build({"classes": str(classes)}))
    assert_one_sentence(str(caught.value))
