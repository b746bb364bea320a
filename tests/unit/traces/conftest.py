"""Helpers for trace tests: files, small traces, and the real traces where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tokenflow_sgl.lab.traces import (
    Accounting,
    PrefixBlock,
    PriorityUpdate,
    Trace,
    TraceRequest,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of text or bytes and returns its path."""

    def writer(content: str | bytes, name: str = "file.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer


@pytest.fixture
def endless(tmp_path: Path) -> Callable[..., Path]:
    """Makes a sparse file whose only or last line is 1 GB long."""

    def maker(head: str = "", name: str = "endless.csv") -> Path:
        path = tmp_path / name
        with path.open("wb") as file:
            file.write(head.encode())
            file.truncate(1 << 30)
        return path

    return maker


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """Path of a real trace below shared/traces; skips where they are not at hand."""

    def finder(name: str) -> Path:
        shared = Path(os.environ.get("TOKENFLOW_SHARED", ROOT.parent / "shared"))
        path = shared / "traces" / name
        if not path.exists():
            pytest.skip(f"{path} is not here (TOKENFLOW_SHARED names another folder)")
        return path

    return finder


def balanced(trace: Trace) -> bool:
    accounting = trace.accounting
    times = [request.arrival_s for request in trace.requests]
    return (
        accounting.rows == accounting.emitted + sum(accounting.dropped.values())
        and accounting.emitted == len(trace.requests)
        and times == sorted(times)
        and all(count > 0 for count in accounting.dropped.values())
        and all(0 <= update.index < len(times) for update in trace.priority_updates)
    )


@pytest.fixture(scope="session")
def is_balanced() -> Callable[[Trace], bool]:
    """Whether rows are accounted for, requests sorted and indices valid."""
    return balanced


@st.composite
def drawn_traces(draw: st.DrawFn) -> Trace:
    """Any small valid trace: sessions, blocks, objectives and priorities included."""
    count = draw(st.integers(1, 12))
    times = sorted(draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count)))
    tokens = st.integers(1, 5000)
    positive = st.none() | st.floats(1e-3, 1e3)
    sizes = {block: 1 + block % 7 for block in range(8)}
    turns: dict[str, int] = {}
    requests = []
    for time in times:
        session = draw(st.sampled_from((None, "a", "b", "ü\n")))
        turn = 0
        if session is not None:
            turn = turns.get(session, 0)
            turns[session] = turn + 1
        blocks = draw(st.lists(st.sampled_from(sorted(sizes)), max_size=4))
        output = draw(tokens)
        qos_class = draw(st.sampled_from((None, "agent", "ü\n")))
        prefix = tuple(PrefixBlock(block, sizes[block]) for block in blocks)
        requests.append(
            TraceRequest(
                arrival_s=time,
                prompt_tokens=sum(block.tokens for block in prefix) + draw(tokens),
                output_tokens=output,
                rate=None if qos_class else draw(positive),
                qos_class=qos_class,
                session=session,
                turn=turn,
                think_s=draw(st.floats(0, 100)) if session else 0.0,
                prefix=prefix,
                ttft_slo_s=draw(positive),
                tbt_slo_s=draw(positive),
                deadline_s=draw(positive),
                priority=draw(st.none() | st.integers(-5, 5)),
                limit_tokens=draw(st.none() | st.integers(output, 100_000)),
                reasoning_tokens=draw(st.integers(0, output)),
            )
        )
    updates = [
        PriorityUpdate(time, draw(st.integers(0, count - 1)), draw(st.integers(-5, 5)))
        for time in sorted(draw(st.lists(st.floats(0, 1e6), max_size=5)))
    ]
    dropped = draw(st.dictionaries(st.text(min_size=1), st.integers(1, 9), max_size=3))
    accounting = Accounting(count + sum(dropped.values()), count, dropped)
    notes = tuple(draw(st.lists(st.text(), max_size=2)))
    return Trace(draw(st.text()), tuple(requests), accounting, notes, tuple(updates))


@pytest.fixture(scope="session")
def traces() -> st.SearchStrategy[Trace]:
    """Strategy of small valid traces."""
    return drawn_traces()
