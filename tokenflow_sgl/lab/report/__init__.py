"""Reports of recorded runs: figures, tables, a page with plots, and comparisons.

`figures` judges one run, `compare` sets runs against a baseline; the terminal, the JSON, the
Markdown and the HTML page show what these two return.
"""

from __future__ import annotations

from tokenflow_sgl.lab.report.catalogue import CATALOGUE
from tokenflow_sgl.lab.report.compare import Against, Change, Comparison, Verdict, compare
from tokenflow_sgl.lab.report.figure_kind import Figure, Section
from tokenflow_sgl.lab.report.markdown import markdown_table
from tokenflow_sgl.lab.report.report_options import Options, ReportError
from tokenflow_sgl.lab.report.run_figures import Figures, figures

__all__ = [
    "CATALOGUE",
    "Against",
    "Change",
    "Comparison",
    "Figure",
    "Figures",
    "Options",
    "ReportError",
    "Section",
    "Verdict",
    "compare",
    "figures",
    "markdown_table",
]
