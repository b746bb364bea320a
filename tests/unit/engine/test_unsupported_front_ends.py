"""Front ends without our part are refused at the start, each with its reason in one sentence."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine import unsupported_front_ends
from tokenflow_sgl.engine.config import TokenFlowConfig, build, config_of
from tokenflow_sgl.engine.flags import APP_VARIABLE, attach
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.release import hold_server_info
from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.engine.unsupported_front_ends import (
    OFF_IN_RUST,
    RUST,
    check_app,
    check_deposits,
    check_rust,
    without_python,
)


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


served_in_rust = pytest.mark.skipif(
    not at_least("0.5.23"), reason="SGLang's server in Rust is refused before 0.5.23"
)


@served_in_rust
@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False)])
def test_the_server_in_rust_is_served_and_the_log_says_what_is_off(
    monkeypatch, caplog, value, on
) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", value)
    caplog.set_level("INFO")
    args = record(tokenizer_worker_num=2)
    monkeypatch.delenv(APP_VARIABLE, raising=False)
    attach(args, TokenFlowConfig())
    assert config_of(args) is not None
    assert (f"tokenflow with {RUST}: {OFF_IN_RUST}" in caplog.messages) is on
    # Its tokenizer workers are threads, which serve no application.
    assert (os.environ.get(APP_VARIABLE) is None) is on
    assert without_python(args) == (RUST if on else None)


def test_the_server_in_rust_is_refused_where_it_was_not_tried(monkeypatch) -> None:
    monkeypatch.setattr(unsupported_front_ends, "at_least", lambda _: False)
    check_rust()
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(UnsupportedError, match="work with SGLANG_RUST_SERVER=1 on this") as caught:
        attach(record(), TokenFlowConfig())
    assert_one_sentence(str(caught.value))


@pytest.mark.skipif(not at_least("0.5.23"), reason="refused there")
def test_server_info_of_the_server_in_rust_has_what_ours_says(monkeypatch) -> None:
    held: list[Any] = []
    monkeypatch.setattr(
        "tokenflow_sgl.engine.sglang.since_0_5_23.hold",
        lambda target, hook, *_: held.append((target, hook)),
    )
    hold_server_info(lambda scheduler: {"said_by": scheduler})
    ((target, told),) = held
    assert target == "sglang.srt.rust_server.config:_launch_server_info"
    assert json.loads(told('{"page_size": 1}', "ours")) == {"page_size": 1, "said_by": "ours"}


def test_the_server_in_rust_may_prefill_for_others(monkeypatch) -> None:
    """SGLang's own scheduler serves it."""
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    attach(record(disaggregation_mode="prefill"), TokenFlowConfig())


@served_in_rust
def test_deposits_are_refused_behind_the_server_in_rust(monkeypatch) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(UnsupportedError, match=f"deposit does not work with {RUST}") as caught:
        attach(record(), TokenFlowConfig(deposit=True))
    assert_one_sentence(str(caught.value))


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
