"""Grafana's JSON: up to date, the same every time, and valid for Grafana's own models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.observe import ScrapeError
from tokenflow_sgl.observe.dashboards import BOARDS
from tokenflow_sgl.observe.dashboards.grafana import grafana_json

FOLDER = Path(__file__).parents[3] / "grafana" / "dashboards"


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


def test_build_writes_them(tmp_path) -> None:
    result = CliRunner().invoke(app, ["dashboard", "build", "--output", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert {path.stem for path in (tmp_path / "new").glob("*.json")} == {b.uid for b in BOARDS}
    assert "Streaming QoS overview" in result.output


def test_import_sends_them_with_the_token(monkeypatch) -> None:
    sent = []
    monkeypatch.setattr(
        "tokenflow_sgl.observe.fetch", lambda url, **request: sent.append((url, request)) or b"{}"
    )
    result = CliRunner().invoke(
        app, ["dashboard", "import", "http://grafana:3000/"], env={"GRAFANA_TOKEN": "secret"}
    )
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    assert len(sent) == len(BOARDS)
    for (url, request), board in zip(sent, BOARDS, strict=True):
        assert url == "http://grafana:3000/api/dashboards/db"
        assert request["headers"]["authorization"] == "Bearer secret"
        body = json.loads(request["data"])
        assert body["overwrite"] is True and body["dashboard"]["uid"] == board.uid


def test_import_without_a_token_or_a_grafana(monkeypatch) -> None:
    result = CliRunner().invoke(
        app, ["dashboard", "import", "http://127.0.0.1:9"], env={"GRAFANA_TOKEN": ""}
    )
    assert result.exit_code == 2
    assert "GRAFANA_TOKEN is not set" in result.output

    def refuse(url, **request):
        raise ScrapeError("nobody answers")

    monkeypatch.setattr("tokenflow_sgl.observe.fetch", refuse)
    result = CliRunner().invoke(
        app, ["dashboard", "import", "http://127.0.0.1:9"], env={"GRAFANA_TOKEN": "x"}
    )
    assert result.exit_code == 1
    assert "nobody answers." in result.output


def test_a_missing_extra_is_named(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["dashboard", "build"])
    assert result.exit_code == 2
    assert "pip install 'tokenflow-sgl[grafana]'" in result.output
