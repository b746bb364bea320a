"""Dashboards as code: their panels (pure data), and Grafana's JSON of them (`grafana`)."""

from tokenflow_sgl.lab.observe.dashboards.overview_board import OVERVIEW
from tokenflow_sgl.lab.observe.dashboards.panels import Board, Kind, Panel, Query, Row, Variable
from tokenflow_sgl.lab.observe.dashboards.replay_board import REPLAY
from tokenflow_sgl.lab.observe.dashboards.scheduler_board import SCHEDULER_BOARD

BOARDS = (OVERVIEW, SCHEDULER_BOARD, REPLAY)

__all__ = ["BOARDS", "Board", "Kind", "Panel", "Query", "Row", "Variable"]
