"""Predictors by name, and what becomes of one that fails."""

import sys
import types

import numpy as np
import pytest

from tokenflow_sgl.contract import Traits
from tokenflow_sgl.contract.lengths import CERTAIN
from tokenflow_sgl.policy import ConfigError, make_predictor
from tokenflow_sgl.policy.learned_lengths import LearnedLengths
from tokenflow_sgl.policy.predictors import LimitLengths

ONE = np.zeros(1, dtype=np.int64)


class Own:
    """A user's: fails where it is told to."""

    fails = ""

    def kind(self, traits):
        if self.fails == "kind":
            raise RuntimeError("no model")
        return {"negative": -1, "many": 10**9}.get(self.fails, 3)

    def ended(self, kind, length, *, cut_off):
        if self.fails == "ended":
            raise RuntimeError("no model")

    def lengths(self, kind, generated):
        if self.fails == "lengths":
            raise RuntimeError("no model")
        return CERTAIN if self.fails == "too few" else CERTAIN.repeated(4)


@pytest.fixture
def own(monkeypatch):
    module = types.ModuleType("own_lengths")
    module.Own = type("Own", (Own,), {})
    module.Nothing = type("Nothing", (), {})
    monkeypatch.setitem(sys.modules, "own_lengths", module)
    return module


def test_by_name(own) -> None:
    assert isinstance(make_predictor("learned"), LearnedLengths)
    assert isinstance(make_predictor("limit"), LimitLengths)
    assert make_predictor("own_lengths:Own").kind(Traits(1, 2)) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("guess", "lengths is 'guess'; allowed is learned, limit or package.module:Class"),
        ("no.such:Class", "lengths 'no.such:Class' cannot be loaded: No module named 'no'"),
        ("own_lengths:Missing", "cannot be loaded"),
        ("own_lengths:Nothing", "cannot be loaded: it has no method kind"),
    ],
)
def test_what_cannot_be_loaded_is_named(own, name, words) -> None:
    with pytest.raises(ConfigError, match=words):
        make_predictor(name)


@pytest.mark.parametrize("fails", ["kind", "negative", "many", "ended", "lengths", "too few"])
def test_one_that_fails_is_replaced(own, caplog, fails) -> None:
    predictor = make_predictor("own_lengths:Own")
    kind = np.array([predictor.kind(Traits(1, 2))])
    own.Own.fails = fails
    for _ in range(3):
        assert predictor.kind(Traits(1, 2)) >= 0
        predictor.ended(3, 5, cut_off=False)
        found = predictor.lengths(kind, ONE)
        assert found.typical.left(kind, ONE, np.array([70])).tolist() == [70.0]
    assert [record.levelname for record in caplog.records] == ["ERROR"], "once"
    assert "own_lengths:Own failed; limits are taken for lengths" in caplog.text
