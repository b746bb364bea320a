"""Asking Prometheus, and pictures of what it answers."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from tokenflow_sgl.lab.observe import ScrapeError
from tokenflow_sgl.lab.observe.dashboards import BOARDS
from tokenflow_sgl.lab.observe.dashboards import prometheus_source as module
from tokenflow_sgl.lab.observe.dashboards.prometheus_source import EVERYTHING, Prometheus, Series
from tokenflow_sgl.lab.observe.dashboards.render import _clock, _lines_of, _nothing, render

DEEP = b"[" * 5000
"""More brackets than Python's parser takes."""


@pytest.fixture
def answers(monkeypatch):
    """What the server answers, by path; asked queries are in `asked`."""
    state = type("Answers", (), {"asked": [], "text": {}})()

    def fetch(url, **_):
        parts = urlsplit(url)
        state.asked.append({key: value[0] for key, value in parse_qs(parts.query).items()})
        return state.text[parts.path]

    monkeypatch.setattr(module, "fetch", fetch)
    return state


def test_variables_are_filled_in() -> None:
    source = Prometheus("http://p", {**EVERYTHING, "baseline": "a:1"}, interval="20s")
    text = 'rate(x{model_name=~"$model",instance="$baseline"}[$__rate_interval])'
    assert source.expression(text) == 'rate(x{model_name=~".*",instance="a:1"}[20s])'


def test_what_a_variable_stands_for_has_no_variables() -> None:
    source = Prometheus("http://p", {**EVERYTHING, "model": "$instance"})
    assert source.expression("$model $modelling $instance") == "$instance $modelling .*"


def test_values_of_a_label(answers) -> None:
    answers.text["/api/v1/label/instance/values"] = b'{"data": ["b:1", "a:1"]}'
    source = Prometheus("http://p")
    metric = 'x{model_name=~"$model"}'
    assert source.label_values("instance", metric, 1.0, 2.0) == ["a:1", "b:1"]
    assert answers.asked == [{"match[]": 'x{model_name=~".*"}', "start": "1.0", "end": "2.0"}]


def test_series_lie_on_their_grid_with_holes(answers) -> None:
    answers.text["/api/v1/query_range"] = json.dumps(
        {
            "data": {
                "result": [
                    {"metric": {"mode": "idle"}, "values": [[100, "1"], [120, "3.5"], [130, "NaN"]]}
                ]
            }
        }
    ).encode()
    (series,) = Prometheus("http://p/").series("x", 100.0, 130.0, 10.0)
    assert series.times.tolist() == [100, 110, 120, 130]
    assert series.values.tolist()[:3:2] == [1.0, 3.5]
    assert np.isnan(series.values[[1, 3]]).all()
    assert series.name("{{mode}} now") == "idle now"
    assert answers.asked[0]["step"] == "10.0"


def test_values_of_now(answers) -> None:
    answers.text["/api/v1/query"] = (
        b'{"data": {"result": [{"metric": {"a": "b"}, "value": [1, "2"]}]}}'
    )
    assert Prometheus("http://p").now("x") == [({"a": "b"}, 2.0)]


@pytest.mark.parametrize("text", [b"<html>", b"{}", b"[]", b'{"data": 3}', b'{"data": {}}', DEEP])
def test_something_else_than_prometheus_is_named(answers, text) -> None:
    answers.text["/api/v1/query"] = text
    with pytest.raises(ScrapeError, match="does not answer like a Prometheus server"):
        Prometheus("http://p").now("x")


class Source:
    """Three series for every expression; none for those of one panel."""

    def __init__(self, silent: str) -> None:
        self._silent = silent

    def series(self, expr, start, end, step):
        if expr == self._silent:
            return []
        times = np.arange(start, end, step)
        return [
            Series({"le": le, "mode": le, "direction": le}, times, np.sin(times / 9) + number)
            for number, le in enumerate(("1.0", "5.0", "+Inf"), 1)
        ]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_panel_is_drawn(board, tmp_path) -> None:
    drawn = []
    path = tmp_path / "board.png"
    render(
        board,
        Source(silent=board.panels[-1].queries[0].expr),
        path,
        start=1000.0,
        end=1600.0,
        progress=lambda: drawn.append(1),
    )
    assert len(drawn) == len(board.panels)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "said"),
    [([], "no data"), ([[np.nan] * 3], "no data"), ([[0, np.nan, 0], [0, 0, 0]], "0 all the time")],
)
def test_an_empty_panel_says_why(values, said) -> None:
    times = np.arange(3.0)
    drawn = [("x", Series({}, times, np.array(each, dtype=np.float64))) for each in values]
    assert _nothing(drawn) == said
    assert not _nothing([*drawn, ("y", Series({}, times, np.array([0.0, 1.0, 0.0])))])


def test_time_is_minutes_and_seconds() -> None:
    assert [_clock(seconds) for seconds in (0.0, 59.6, 61.0, 3600.0)] == [
        "0:00",
        "1:00",
        "1:01",
        "60:00",
    ]


def test_lines_are_filled_as_grafana_does() -> None:
    for board in BOARDS:
        lines = _lines_of(board)
        assert [panel for panels in lines for panel in panels] == list(board.panels)
        for panels in lines:
            assert sum(panel.width for panel in panels) <= 24
