"""A rank that does something else than its leader is found, and named with the pass.

That ranks agree whatever happens to them: the arenas with two ranks in test_random.py.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import re
from pathlib import Path

import pytest
from servers.client import Served
from servers.fixtures import BROKEN, MODULE
from servers.tuned import CHECK_RANKS

from tokenflow_sgl.lab.demo.server import ServerError

pytestmark = pytest.mark.engine

TWO_RANKS = ("--scheduler", "tokenflow", "--tp-size", "2", "--max-total-tokens", "4000")
ENV = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
CONTROLS = {
    "policy": (MODULE, "forced:PreemptOthersOnOneRank", {}),
    "clock": (BROKEN, "forced:PreemptEvery", {"TOKENFLOW_TEST_BREAK": "own-clock"}),
}


def answer(served: Served, prompts: list[list[int]]) -> None:
    """Some answers, or the server's end."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        for _ in range(3):
            served.together([lambda p=p: served.generate(p) for p in prompts])


@pytest.mark.slow
@pytest.mark.parametrize("what", CONTROLS)
def test_a_wrong_rank_is_named(start, prompts, what) -> None:
    program, policy, broken = CONTROLS[what]
    flags = (*TWO_RANKS, "--tokenflow-policy", policy)

    def ask(*checked: str) -> str | None:
        try:
            with start(*flags, *checked, program=program, env={**ENV, **broken}) as served:
                answer(served, prompts)
                path = served.server.log_path
        except ServerError as error:  # while it warms up
            path = Path(re.search(r"^log (.+), last lines:$", str(error), re.MULTILINE)[1])
        # The server is gone, so all of its ranks have written what they had to say.
        log = path.read_text(errors="replace")
        print("\n".join(log.splitlines()[-60:]))
        return next((line for line in log.splitlines() if "ranks disagree" in line), None)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found, unnoticed = pool.map(lambda checked: ask(*checked), ((CHECK_RANKS,), ()))
    assert found is not None
    assert "rank 1, in its pass" in found
    assert {"policy": "decision", "clock": "clock"}[what] in found
    assert unnoticed is None, "nobody looks unless asked to"
