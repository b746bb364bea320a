"""Grafana's JSON of our dashboards, made with Grafana's own SDK (an extra: `grafana`)."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from tokenflow_sgl.lab.observe.dashboards.panels import Board, Kind, Panel, Variable

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT = 8
NUMBER_HEIGHT = 4


def grafana_json(board: Board) -> str:
    """The dashboard as Grafana imports it; the same text for the same board."""
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(_dashboard(board))
    return text + "\n"


def _dashboard(board: Board) -> models.Dashboard:
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(list(board.tags))
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made = made.with_panel(_panel(panel))
    return made.build()


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(DATASOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(variable.many)
        .include_all(variable.many)
    )
    return made.all_value(".*") if variable.many else made


def _panel(panel: Panel) -> Any:
    """The builder of a panel."""
    made = {
        Kind.LINES: _lines,
        Kind.STACKED: _stacked,
        Kind.NUMBER: _number,
        Kind.HEATMAP: _heatmap,
        Kind.STATES: _states,
    }[panel.kind]()
    if panel.kind in (Kind.LINES, Kind.STACKED) and not panel.signed:
        made = made.min(0)
    steps = [models.Threshold(value=None, color=panel.base)]
    steps += [models.Threshold(value=value, color=color) for value, color in panel.thresholds]
    made = (
        made.title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .span(panel.width)
        .height(NUMBER_HEIGHT if panel.kind is Kind.NUMBER else HEIGHT)
        .unit(panel.unit)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    )
    for number, query in enumerate(panel.queries):
        target = (
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + number))
            .datasource(DATASOURCE)
        )
        if panel.kind is Kind.HEATMAP:
            target = target.format("heatmap")
        made = made.with_target(target)
    return made


def _lines() -> Any:
    return (
        timeseries.Panel()
        .line_width(2)
        .fill_opacity(0)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .placement(common_models.LegendPlacement.BOTTOM)
            .display_mode(common_models.LegendDisplayMode.LIST)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )


def _stacked() -> Any:
    return (
        _lines()
        .line_width(1)
        .fill_opacity(40)
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    )


def _number() -> Any:
    return (
        stat.Panel()
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("none")
    )


def _heatmap() -> Any:
    return (
        heatmap.Panel()
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .steps(64)
        )
    )


def _states() -> Any:
    return statetimeline.Panel().merge_values(True).show_value(common_models.VisibilityMode.NEVER)
