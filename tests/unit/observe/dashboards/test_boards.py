"""What dashboards and rules ask for is what the scheduler and SGLang report."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from tokenflow_sgl.lab.observe.dashboards import BOARDS
from tokenflow_sgl.lab.observe.dashboards.panels import Kind
from tokenflow_sgl.lab.observe.dashboards.prometheus_source import INTERVAL
from tokenflow_sgl.metrics import METRICS

ROOT = Path(__file__).parents[4]
RULES = ROOT / "grafana" / "prometheus" / "rules.yml"
SUFFIXES = ("_bucket", "_sum", "_count")
EXPRESSIONS = [
    pytest.param(query.expr, id=f"{board.uid}: {panel.title}")
    for board in BOARDS
    for panel in board.panels
    for query in panel.queries
]


def recorded() -> set[str]:
    """Names that recording rules make."""
    return set(re.findall(r"record: (\S+)", RULES.read_text()))


def check(text: str) -> None:
    """Every name in the text exists, with the labels that it is asked for."""
    for name, selector in re.findall(r"tokenflow:([a-z0-9_:]+)(?:\{([^}]*)\})?", text):
        if f"tokenflow:{name}" in recorded():
            continue
        base, own = name, {"model_name", "instance"}
        for suffix in SUFFIXES:
            if name.endswith(suffix) and METRICS.get(name.removesuffix(suffix)):
                base = name.removesuffix(suffix)
                assert METRICS[base].kind == "histogram"
                own.add("le")
        assert base in METRICS, f"tokenflow:{name} is not declared"
        asked = set(re.findall(r"(\w+)(?:=|!)", selector))
        assert asked <= {*own, *METRICS[base].labels}, name
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    collector = Path(spec.submodule_search_locations[0]) / "srt/observability/metrics_collector.py"
    known = set(re.findall(r'"(sglang:\w+)"', collector.read_text()))
    for name in re.findall(r"sglang:\w+", text):
        assert any(name.removesuffix(suffix) in known for suffix in ("", *SUFFIXES)), name


def seconds(duration: str) -> float:
    return float(duration[:-1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[duration[-1]]


def test_grafana_knows_how_often_prometheus_looks() -> None:
    """Grafana's $__rate_interval is four times what its data source says."""
    config = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())
    (source,) = yaml.safe_load(
        (ROOT / "grafana/provisioning/datasources/prometheus.yml").read_text()
    )["datasources"]
    told = source["jsonData"]["timeInterval"]
    assert told == config["global"]["scrape_interval"] == "15s"
    assert seconds(INTERVAL) == 4 * seconds(told)


@pytest.mark.parametrize("expr", [*EXPRESSIONS, pytest.param(RULES.read_text(), id="rules")])
def test_windows_have_four_scrapes(expr) -> None:
    """A rate needs two, one may fail, and a window begins where it likes."""
    text = "\n".join(line for line in expr.splitlines() if not line.strip().startswith("#"))
    for window in re.findall(r"\[([^\]]+)\]", text):
        assert window == "$__rate_interval" or seconds(window) >= 60.0, window


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_panels_ask_for_what_is_reported(expr) -> None:
    check(expr)


def test_rules_ask_for_what_is_reported() -> None:
    text = RULES.read_text()
    check("\n".join(line for line in text.splitlines() if not line.strip().startswith("#")))


ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_leads_to_what_to_do(name) -> None:
    rule, page = ALERTS[name], (ROOT / "docs" / "alerts.md").read_text()
    assert rule["labels"]["severity"] in ("warning", "critical")
    notes = rule["annotations"]
    assert notes["runbook"] == f"docs/alerts.md#{name.lower()}"
    assert notes["summary"] and notes["description"].endswith(".")
    (section,) = re.findall(rf"^## {name}\n\n(.+?)(?=\n## |\Z)", page, re.M | re.S)
    assert section.strip()
    assert f"| [{name}](#{name.lower()}) | {rule['labels']['severity']} |" in page


def test_the_page_of_alerts_has_no_other() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert re.findall(r"^## (\w+)", page, re.M) == [*ALERTS]


def test_late_first_texts_are_counted_by_a_bound_of_the_histogram() -> None:
    (bound,) = set(re.findall(r'le="([^"]+)"', RULES.read_text()))
    assert bound in {str(float(each)) for each in METRICS["ttfvt_seconds"].buckets}


def test_boards_are_complete() -> None:
    assert len({board.uid for board in BOARDS}) == len(BOARDS)
    for board in BOARDS:
        assert board.title and board.description.endswith(".")
        for row in board.rows:
            widths = 0
            for panel in row.panels:
                assert panel.description.endswith("."), panel.title
                assert panel.queries and all(query.legend for query in panel.queries)
                assert panel.unit
                widths += panel.width
            assert widths % 24 == 0, f"{board.title}, {row.title}: panels fill their lines"
        for panel in board.panels:
            assert panel.kind is not Kind.HEATMAP or len(panel.queries) == 1


def test_variables_are_used() -> None:
    for board in BOARDS:
        asked = " ".join(query.expr for panel in board.panels for query in panel.queries)
        for variable in board.variables:
            assert f"${variable.name}" in asked


def test_every_metric_of_the_scheduler_is_on_a_dashboard_or_in_an_alert() -> None:
    shown = RULES.read_text() + " ".join(
        query.expr for board in BOARDS for panel in board.panels for query in panel.queries
    )
    assert [name for name in METRICS if f"tokenflow:{name}" not in shown] == []
