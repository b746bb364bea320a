"""Dashboards as code: their panels (pure data), and Grafana's JSON of them (`grafana`)."""

from tokenflow_sgl.dashboards.overview import OVERVIEW
from tokenflow_sgl.dashboards.panels import Board, Kind, Panel, Query, Row, Variable
from tokenflow_sgl.dashboards.replay import REPLAY
from tokenflow_sgl.dashboards.scheduler import SCHEDULER_BOARD

BOARDS = (OVERVIEW, SCHEDULER_BOARD, REPLAY)

__all__ = ["BOARDS", "Board", "Kind", "Panel", "Query", "Row", "Variable"]
