"""``tokenflow doctor --live``: what it says of a server's metrics, and of servers without any."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, Counter, Histogram, generate_latest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.contract import Cause, Mode
from tokenflow_sgl.engine.telemetry.prometheus import Levels
from tokenflow_sgl.lab.observe import ScrapeError, metrics_page, parse


@pytest.fixture
def examined(monkeypatch):
    """Runs the command on what the registry holds now: exit code and lines."""

    def run() -> tuple[int, list[str]]:
        monkeypatch.setattr(
            metrics_page, "scrape", lambda url: parse(generate_latest(REGISTRY).decode())
        )
        result = CliRunner().invoke(
            app, ["doctor", "--live", "http://127.0.0.1:1"], env={"COLUMNS": "200"}
        )
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, [" ".join(line.split()) for line in result.output.splitlines()]

    return run


def line_of(lines, beginning):
    """The rest of the one line that begins so."""
    found = [line[len(beginning) + 1 :] for line in lines if line.startswith(beginning)]
    assert len(found) == 1, lines
    return found[0]


def test_what_a_busy_server_has_measured(recorder, examined) -> None:
    recorder.levels(Levels(running=12, paused=3, waiting=4, working_set=15))
    recorder.policy_pass(Mode.WORKING_SET, 0.0003)
    recorder.preempted(Cause.EXCHANGE)
    recorder.preempted(Cause.EXCHANGE)
    recorder.preempted(Cause.MEMORY)
    for _ in range(3):
        recorder.released(tail=1, needed=1000, held=2000)
        recorder.resumed(recomputed=1, loaded=2000, resident=0)
    recorder.written_ahead(3300)
    for name, tokens in (("hicache_backup", 15_000), ("load_back", 20_000)):
        Counter(f"sglang:{name}_tokens_total", "Copied.").inc(tokens)
        Counter(f"sglang:{name}_bytes_total", "Copied.").inc(131_072 * tokens)
        Histogram(f"sglang:{name}_duration_seconds", "Duration.").observe(0.1)
    recorder.link("store", 150_000.0, 64)
    recorder.link("load", 100_000.0, 0)
    recorder.count("scheduling_seconds_total", 1.5)
    code, lines = examined()
    assert code == 0
    assert "12 3 4 15 working-set" in lines
    assert line_of(lines, "to the host").startswith("150,000 tokens/s 19.7 GB/s 64 tokens 1 ")
    assert line_of(lines, "back").startswith("100,000 tokens/s 13.1 GB/s 0 tokens 1 ")
    assert line_of(lines, "preemptions") == "2 exchange, 1 memory"
    assert line_of(lines, "loaded with a resume, mean (tau_load)") == ("2,000 tokens, 20.00 ms")
    assert "tokens, 0.0" in line_of(lines, "left to copy by a preemption, median (tau_evict)")
    assert line_of(lines, "copied to the host over held by preempted streams") == "2.50"
    assert line_of(lines, "proactively written over needed") == "1.10"
    assert line_of(lines, "time in the scheduler loop, in all") == "1.50 s"


def test_what_a_server_does_not_know_yet(recorder, examined) -> None:
    code, lines = examined()
    assert code == 0
    assert line_of(lines, "preemptions") == "none"
    assert line_of(lines, "back").startswith("not known yet")


def test_of_ranks_each_copies_over_a_link_of_its_own(monkeypatch) -> None:
    """What one stream needs does not get faster by the rank beside it."""
    page = 'tokenflow:mode{mode="idle"} 1.0\n' + "".join(
        f'tokenflow:link_tokens_per_second{{dp_rank="{rank}",direction="load"}} 100000.0\n'
        f'tokenflow:resumes_total{{dp_rank="{rank}"}} 1.0\n'
        f'tokenflow:resume_loaded_tokens_total{{dp_rank="{rank}"}} 2000.0\n'
        for rank in (0, 1)
    )
    monkeypatch.setattr(metrics_page, "scrape", lambda url: parse(page))
    result = CliRunner().invoke(
        app, ["doctor", "--live", "http://127.0.0.1:1"], env={"COLUMNS": "200"}
    )
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert line_of(lines, "loaded with a resume, mean (tau_load)") == "2,000 tokens, 20.00 ms"
    assert line_of(lines, "back").startswith("200,000 tokens/s"), "of both links together"


def test_a_failing_policy_is_an_error(recorder, examined) -> None:
    recorder.policy_error()
    code, lines = examined()
    assert code == 1
    assert "failed in 1 passes" in lines[-1]


def test_a_server_without_the_scheduler_is_told_so(examined) -> None:
    code, lines = examined()
    assert code == 1
    assert lines[-1].endswith("start it with --scheduler tokenflow --enable-metrics.")


def test_nobody_there(monkeypatch) -> None:
    def refuse(url: str) -> None:
        raise ScrapeError("nobody answers")

    monkeypatch.setattr(metrics_page, "scrape", refuse)
    result = CliRunner().invoke(app, ["doctor", "--live", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.output == "nobody answers.\n"
