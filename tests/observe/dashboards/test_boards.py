"""What dashboards and rules ask for is what the scheduler and SGLang report."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tokenflow_sgl.metrics import METRICS
from tokenflow_sgl.observe.dashboards import BOARDS
from tokenflow_sgl.observe.dashboards.panels import Kind

ROOT = Path(__file__).parents[3]
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
        base = name
        for suffix in SUFFIXES:
            if name.endswith(suffix) and METRICS.get(name.removesuffix(suffix)):
                base = name.removesuffix(suffix)
                assert METRICS[base].kind == "histogram"
        assert base in METRICS, f"tokenflow:{name} is not declared"
        asked = set(re.findall(r"(\w+)(?:=|!)", selector))
        assert asked <= {"model_name", "instance", *METRICS[base].labels}, name
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    collector = Path(spec.submodule_search_locations[0]) / "srt/observability/metrics_collector.py"
    known = set(re.findall(r'"(sglang:\w+)"', collector.read_text()))
    for name in re.findall(r"sglang:\w+", text):
        assert any(name.removesuffix(suffix) in known for suffix in ("", *SUFFIXES)), name


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_panels_ask_for_what_is_reported(expr) -> None:
    check(expr)


def test_rules_ask_for_what_is_reported() -> None:
    text = RULES.read_text()
    check("\n".join(line for line in text.splitlines() if not line.strip().startswith("#")))


def test_alerts_say_what_to_do() -> None:
    text = RULES.read_text()
    alerts = text.split("- alert: ")[1:]
    assert len(alerts) >= 5
    for alert in alerts:
        for needed in ("severity:", "summary:", "description:"):
            assert needed in alert


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
