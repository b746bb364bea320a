"""Some models, servers and classes alone, as the options of `tokenflow dashboard render` say."""

from __future__ import annotations

import re

import pytest

from tokenflow_sgl.errors import InputError
from tokenflow_sgl.lab.observe.dashboards.chosen_series import any_of, chosen, literal
from tokenflow_sgl.lab.observe.dashboards.prometheus_source import EVERYTHING

THERE = {"model_name": ["qwen"], "instance": ["a.b:1", "c:2"], "qos_class": []}


class Source:
    """Knows the values of labels."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def label_values(self, label, metric, start, end):
        assert (start, end) == (10.0, 20.0)
        self.asked.append(metric)
        return THERE[label]


def choose(source: Source, **wanted: list[str]):
    return chosen(source, wanted, 10.0, 20.0)  # type: ignore[arg-type]


def test_all_of_what_is_not_named() -> None:
    source = Source()
    assert choose(source, model=[], instance=["a.b:1", "c:2"]) == {
        **EVERYTHING,
        "instance": r"a\\.b:1|c:2",
    }
    assert source.asked == ['tokenflow:mode{model_name=~"$model"}'], "nothing else is asked"


def test_what_there_is_not_is_named() -> None:
    with pytest.raises(InputError, match=r"--instance is 'axb:1'.*it has a\.b:1, c:2$"):
        choose(Source(), instance=["a.b:1", "axb:1"])
    with pytest.raises(InputError, match=r"--class is 'chat'.*it has no class$"):
        choose(Source(), **{"class": ["chat"]})


@pytest.mark.parametrize("value", ["a.b:1", 'q"uo\\te', "$model", "a|b", "(x)*"])
def test_a_value_means_itself(value) -> None:
    unquoted = any_of([value, "other"]).replace('\\"', '"').replace("\\\\", "\\")
    assert re.fullmatch(unquoted, value) and re.fullmatch(unquoted, "other")
    assert not re.fullmatch(unquoted, value + "x")
    assert '"' not in literal(value).replace('\\"', "")
