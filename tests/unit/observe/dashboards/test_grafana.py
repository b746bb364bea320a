"""Grafana's JSON: up to date, the same every time, and valid for Grafana's own models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models

from tokenflow_sgl.lab.observe.dashboards import BOARDS
from tokenflow_sgl.lab.observe.dashboards.grafana import grafana_json
from tokenflow_sgl.lab.observe.dashboards.panels import Kind

FOLDER = Path(__file__).parents[4] / "grafana" / "dashboards"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_generated_files_are_up_to_date(board) -> None:
    assert (FOLDER / f"{board.uid}.json").read_text() == grafana_json(board), (
        "run: tokenflow dashboard build"
    )


def test_there_is_no_file_of_a_board_that_is_gone() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {board.uid for board in BOARDS}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_grafanas_own_models_take_them(board) -> None:
    register_default_plugins()
    loaded = models.Dashboard.from_json(json.loads(grafana_json(board)))
    assert loaded.title == board.title
    assert loaded.templating and loaded.templating.list_val
    names = [variable.name for variable in loaded.templating.list_val]
    assert names == ["datasource", *(variable.name for variable in board.variables)]
    panels = [panel for panel in loaded.panels or [] if panel.type_val != "row"]
    assert [panel.title for panel in panels] == [panel.title for panel in board.panels]
    for drawn, meant in zip(panels, board.panels, strict=True):
        assert [target.expr for target in drawn.targets] == [q.expr for q in meant.queries]
        assert drawn.field_config.defaults.unit == meant.unit
        assert drawn.grid_pos.x + drawn.grid_pos.w <= 24
        assert drawn.datasource.uid == "${datasource}"


def test_an_axis_ends_at_0_only_where_nothing_is_below() -> None:
    below = {"tokenflow:headroom_tokens", "tokenflow:qos:rate5m"}
    for board in BOARDS:
        drawn = [each for each in json.loads(grafana_json(board))["panels"] if "targets" in each]
        for one, panel in zip(drawn, board.panels, strict=True):
            asked = " ".join(query.expr for query in panel.queries)
            assert panel.signed == any(name in asked for name in below), panel.title
            ends = panel.kind in (Kind.LINES, Kind.STACKED) and not panel.signed
            assert one["fieldConfig"]["defaults"].get("min") == (0 if ends else None)
