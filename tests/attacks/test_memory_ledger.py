"""The memory ledger notices a page in two hands, which SGLang's sums do not.

It is on in every server of the tests: that it finds nothing there is what the other tests show.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import re
from pathlib import Path

import pytest
from servers.fixtures import BROKEN

from tokenflow_sgl.lab.demo.server import ServerError

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FORCED = ("--scheduler", "tokenflow", "--tokenflow-policy", "forced:PreemptEvery")
SMALL = ("--max-total-tokens", "448", "--hicache-ratio", "6", "--chunked-prefill-size", "32")
CONTROLS = {
    "two-hands": "is in requests and (requests|the prefix tree)",
    "unlocked-writes": r"a copy uses .* tree does not have|two copies use .* of the device",
}
"""What is broken, see broken_server.py, and what is said of it."""
MOST = 30
"""Rounds until then, at most."""


def test_controls_are_noticed(start, prompts) -> None:
    def ask(broken: str) -> str:
        env = {"TOKENFLOW_TEST_BREAK": broken, "TOKENFLOW_EMU_LATE_COPIES": "4"}
        try:
            with start(*FORCED, *SMALL, program=BROKEN, env=env) as served:
                path = served.server.log_path
                with contextlib.suppress(OSError, http.client.HTTPException):
                    for _ in range(MOST):
                        served.together([lambda p=p: served.generate(p) for p in prompts])
        except ServerError as error:  # while it warms up
            path = Path(re.search(r"^log (.+), last lines:$", str(error), re.MULTILINE)[1])
        return path.read_text(errors="replace")

    with concurrent.futures.ThreadPoolExecutor(len(CONTROLS)) as pool:
        logs = dict(zip(CONTROLS, pool.map(ask, CONTROLS), strict=True))
    for broken, said in CONTROLS.items():
        lines = [line for line in logs[broken].splitlines() if "memory ledger:" in line]
        print(broken, *lines, sep="\n")
        assert any(re.search(said, line) for line in lines), logs[broken][-3000:]
        assert "Mem Leak" not in logs[broken], "the sums are right"
