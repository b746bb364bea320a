"""``tokenflow dashboard``: Grafana's files written, and sent to a running Grafana."""

from __future__ import annotations

import json
from urllib.parse import unquote_plus

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.observe import ScrapeError
from tokenflow_sgl.lab.observe.dashboards import BOARDS


def test_build_writes_them(tmp_path) -> None:
    result = CliRunner().invoke(app, ["dashboard", "build", "--output", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert {path.stem for path in (tmp_path / "new").glob("*.json")} == {b.uid for b in BOARDS}
    assert "Streaming QoS overview" in result.output


def test_import_sends_them_with_the_token(monkeypatch) -> None:
    sent = []
    monkeypatch.setattr(
        "tokenflow_sgl.lab.observe.fetch",
        lambda url, **request: sent.append((url, request)) or b'{"status": "success"}',
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

    monkeypatch.setattr("tokenflow_sgl.lab.observe.fetch", refuse)
    result = CliRunner().invoke(
        app, ["dashboard", "import", "http://127.0.0.1:9"], env={"GRAFANA_TOKEN": "x"}
    )
    assert result.exit_code == 1
    assert "nobody answers." in result.output


@pytest.mark.parametrize("answer", [b"<html>Please log in</html>", b"{}", b"[]", b"[" * 5000])
def test_import_is_none_if_grafana_does_not_say_so(monkeypatch, answer) -> None:
    monkeypatch.setattr("tokenflow_sgl.lab.observe.fetch", lambda url, **_: answer)
    result = CliRunner().invoke(
        app, ["dashboard", "import", "http://grafana:3000"], env={"GRAFANA_TOKEN": "x"}
    )
    assert result.exit_code == 1
    assert "does not answer like Grafana: nothing was imported." in result.output
    assert "/d/" not in result.output


def test_render_names_a_server_that_prometheus_does_not_know(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(
        "tokenflow_sgl.lab.observe.dashboards.prometheus_source.fetch",
        lambda url, **_: b'{"data": ["127.0.0.1:30001"]}',
    )
    asked = ["dashboard", "render", "http://127.0.0.1:9090", "--output", str(tmp_path / "new")]
    result = CliRunner().invoke(app, [*asked, "--instance", "127.0.0.1:30000"])
    assert result.exit_code == 2
    assert "--instance is '127.0.0.1:30000'" in result.output
    assert "it has 127.0.0.1:30001." in result.output
    assert not (tmp_path / "new").exists()


def test_render_draws_one_server(monkeypatch, tmp_path) -> None:
    asked = []

    def fetch(url, **_):
        asked.append(unquote_plus(url))
        values = "/label/" in url
        return b'{"data": ["a:1", "b:2"]}' if values else b'{"data": {"result": []}}'

    monkeypatch.setattr("tokenflow_sgl.lab.observe.dashboards.prometheus_source.fetch", fetch)
    options = ["--instance", "a:1", "--baseline", 'b"2', "--output", str(tmp_path)]
    result = CliRunner().invoke(app, ["dashboard", "render", "http://127.0.0.1:9090", *options])
    assert result.exit_code == 0, result.output
    assert {path.stem for path in tmp_path.glob("*.png")} == {board.uid for board in BOARDS}
    assert any('instance=~"a:1"' in url for url in asked)
    assert not any("$" in url or 'instance=~".*"' in url for url in asked)
    assert any('instance="b\\"2"' in url for url in asked), "of the replay comparison"


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["dashboard", "build"])
    assert result.exit_code == 2
    assert "pip install 'grafana-foundation-sdk==" in result.output
