"""A plugin of pytest that notes what becomes of each case, as soon as it is known.

So a run that has to be ended has outcomes, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PATH = "TOKENFLOW_TESTS_OUTCOMES"
"""The file: a line of JSON for each case, or part of one, with its name and its outcome."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def pytest_runtest_logreport(report: Any) -> None:
    """Of a case's preparation, call and end: what did not pass, and the call."""
    if report.when == "call" or report.outcome != PASSED:
        _note(report)


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported."""
    if report.failed:
        _note(report)


def _note(report: Any) -> None:
    with Path(os.environ[PATH]).open("a", encoding="utf-8") as file:
        name = report.nodeid.rpartition("/")[2]
        file.write(json.dumps([name, report.outcome]) + "\n")


def outcomes(path: Path) -> dict[str, str]:
    """By the name of a case: passed, failed or skipped. A failure of a part is one of the case."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, outcome = json.loads(line)
        found[name] = FAILED if FAILED in (outcome, found.get(name)) else outcome
    return found
