"""What tests of several packages share: states, and servers that start fast."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rotation
import states
from hypothesis import HealthCheck, settings

from porting.forks import warm_forks
from tokenflow_sgl.contract import State

pytest.register_assert_rewrite("identity.arena")
pytest_plugins = ["servers.fixtures", "identity.fixtures"]

REASON_LINES = 15
"""Of a failure's message, from its beginning and from its end."""
NOT_RUN = "NOT RUN"
OTHERS = pytest.StashKey[int]()
"""Slow tests of other landings."""

# An example, and to draw one, may take as long as a busy machine needs: what is slow is seen in the
# durations.
settings.register_profile(
    "patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--start-none-after` and `--turn`, for runs that have to end in time."""
    parser.addoption(
        "--start-none-after",
        type=float,
        default=float("inf"),
        metavar="TIME",
        help="skip what has not begun by then, in seconds since 1970; the summary counts it",
    )
    parser.addoption(
        "--turn",
        type=int,
        metavar="N",
        help="of the slow tests run the part that landing N has (tests/helpers/rotation.py)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that start no SGLang come first: a mistake in the rest of the package shows early.

    Where some may be left out for want of time, it is not always the same: files come in an order
    that the landing decides, or else the time.
    """
    if (turn := turn_of(config)) is not None:
        others = [item for item in items if is_slow(item) and part(item) != turn.part]
        items[:] = [item for item in items if item not in set(others)]
        config.hook.pytest_deselected(items=others)
        config.stash[OTHERS] = len(others)
    if (latest := config.getoption("start_none_after")) < float("inf"):
        files = sorted({file_of(item) for item in items})
        if turn is not None:
            files = turn.order(files)
        else:
            random.Random(latest).shuffle(files)
        place = {path: number for number, path in enumerate(files)}
        items.sort(key=lambda item: place[file_of(item)])
    items.sort(key=lambda item: item.get_closest_marker("engine") is not None)


def turn_of(config: pytest.Config) -> rotation.Turn | None:
    """The landing that this run belongs to, if it belongs to one."""
    number = config.getoption("turn")
    return None if number is None else rotation.Turn(number)


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def part(item: pytest.Item) -> int:
    return rotation.part_of(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of several processes each tells the first one how many tests it left to other landings."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["others"] = session.config.stash.get(OTHERS, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All of them have left out the same."""
    node.config.stash[OTHERS] = getattr(node, "workeroutput", {}).get("others", 0)


def pytest_collection_finish() -> None:
    """Leave all that was imported out of later garbage collections: they took half a second each.

    With SGLang and PyTorch there are a million objects, which stay to the end.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Keep a library of transformers' from ending the process with a segmentation fault.

    SWIG's destructor of what all its modules share needs a type, which is gone before if Python
    unloads modules in an unlucky order. A reference that is never given back keeps it from that.
    """
    for name in [name for name in sys.modules if name.startswith("swig_runtime_data")]:
        for shared in vars(sys.modules[name]).values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which slow tests this landing has not begun, and which come in another one.

    And, last, why what failed has failed: of a long log the middle gets lost.
    """
    stats = terminalreporter.stats
    if (turn := turn_of(config)) is not None:
        waiting = [
            each.nodeid for each in stats.get("skipped", ()) if NOT_RUN in str(each.longrepr)
        ]
        begun = sum(len(stats.get(each, ())) for each in ("passed", "failed", "xfailed"))
        terminalreporter.section("slow tests, by landing", sep="-")
        for line in turn.said(begun, waiting, config.stash.get(OTHERS, 0)):
            terminalreporter.write_line(line)
    for report in [*stats.get("failed", ()), *stats.get("error", ())]:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else str(report.longrepr)
        lines = [line[:300] for line in message.split("\n")]
        if len(lines) > 2 * REASON_LINES:
            lines[REASON_LINES:-REASON_LINES] = ["..."]
        terminalreporter.section(f"why: {report.nodeid}", sep="-")
        terminalreporter.write("\n".join(lines) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that comes too late.

    Fail one that would start SGLang and is not marked `engine`: `make check` runs it.
    """
    if time.time() > item.config.getoption("start_none_after"):
        pytest.skip(f"{NOT_RUN}: no time is left to start it (--start-none-after)")
    if "warm" in getattr(item, "fixturenames", ()) and item.get_closest_marker("engine") is None:
        pytest.fail("it starts SGLang and is not marked engine", pytrace=False)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """A launcher for `SglangServer`, to be followed by a module's name or a script's path.

    Its servers have SGLang imported already; see warm/sglang_forks.py.
    """
    with warm_forks(tmp_path_factory.mktemp("warm")) as launcher:
        yield launcher


# Of session scope, so that hypothesis accepts them.
@pytest.fixture(scope="session")
def make_stream() -> Callable[..., dict[str, Any]]:
    """`make_stream(phase, **columns)`; slack is in seconds from now."""
    return states.stream


@pytest.fixture(scope="session")
def make_state() -> Callable[..., State]:
    """`make_state(rows, **what differs)`; the slot of row i is 10 + i."""
    return states.state
