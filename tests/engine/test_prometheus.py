"""A real Prometheus scrapes a real server under load: every query of ours has an answer."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.dashboards import BOARDS
from tokenflow_sgl.dashboards.prometheus import EVERYTHING, Prometheus
from tokenflow_sgl.watch import ScrapeError, fetch

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
RULES = ROOT / "grafana" / "prometheus"
CACHE = Path.home() / ".cache" / "tokenflow-sgl" / "prometheus"
LOAD_SECONDS = 15.0
# A prefix with a colon is what SGLang's own metrics have, and ours stand beside them.
TOLERATED = "metric names should not contain ':'"


@pytest.fixture(scope="module")
def binaries() -> Path:
    """The folder of prometheus and promtool: installed, or Debian's package taken apart."""
    if found := shutil.which("promtool"):
        return Path(found).parent
    if not (CACHE / "usr/bin/promtool").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            download = ["apt-get", "download", "prometheus"]
            subprocess.run(download, cwd=CACHE, check=True, capture_output=True, timeout=120)
            package = next(CACHE.glob("prometheus_*.deb"))
            subprocess.run(["dpkg-deb", "-x", package, CACHE], check=True, capture_output=True)
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            pytest.skip(f"Prometheus is not installed and Debian's package not to be had: {error}")
    return CACHE / "usr/bin"


def run(*command: object, **how) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, **how)
    return f"{done.stdout}{done.stderr}" + (
        f"\nexit code {done.returncode}" * bool(done.returncode)
    )


def test_rules_are_valid_and_do_what_they_say(binaries) -> None:
    assert "exit code" not in (
        out := run(binaries / "promtool", "check", "rules", RULES / "rules.yml")
    ), out
    out = run(binaries / "promtool", "test", "rules", "rules_test.yml", cwd=RULES)
    assert "exit code" not in out, out


def test_a_wrong_rule_is_noticed(binaries, tmp_path) -> None:
    for name in ("rules.yml", "rules_test.yml"):
        text = (RULES / name).read_text()
        (tmp_path / name).write_text(text.replace("> 0.95", "> 0.995"))
    out = run(binaries / "promtool", "test", "rules", "rules_test.yml", cwd=tmp_path)
    assert "FAILED" in out


@pytest.fixture(scope="module")
def watched(start, binaries, tmp_path_factory):
    """A server with more streams than it has memory for, and the Prometheus that scrapes it."""
    folder = tmp_path_factory.mktemp("prometheus")
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "4")
    # Copies that are late are also timed, so that the server gets to know its link.
    with start(*flags, env={"TOKENFLOW_EMU_LATE_COPIES": "2"}) as served:
        target = served.server.url.removeprefix("http://")
        # The configuration that users get, with a faster clock and this server.
        config = yaml.safe_load((RULES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES / "rules.yml")]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            binaries / "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
        try:
            sides = {"baseline": target, "candidate": target}
            source = Prometheus(f"http://127.0.0.1:{port}", {**EVERYTHING, **sides}, "10s")
            yield served, source, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


@contextlib.contextmanager
def load(served, prompts):
    """Readers of all classes who come in bursts, until the block is left."""
    over = threading.Event()

    def ask(number: int) -> None:
        classes = ("reading", "listening", "agent")
        params = {"tokenflow_class": classes[number % 3]}
        while not over.is_set():
            served.generate(
                prompts[number % len(prompts)],
                stream=True,
                max_new_tokens=300,
                custom_params=params,
            )

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def test_every_panel_rule_and_alert_has_data(watched, prompts, binaries, tmp_path) -> None:
    served, source, url = watched
    with load(served, prompts):
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            with contextlib.suppress(ScrapeError):
                if source.now("tokenflow:preemptions_total > 0"):
                    break
            time.sleep(1.0)
        time.sleep(LOAD_SECONDS)
        silent = {
            f"{board.title}, {panel.title}: {query.expr}": query.empty
            for board in BOARDS
            for panel in board.panels
            for query in panel.queries
            if not source.now(query.expr)
        }
        groups = yaml.safe_load((RULES / "rules.yml").read_text())["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        for rule in rules:
            # An alert's own expression has data in trouble only: what it compares has it always.
            compared = re.sub(r"\s(>|==)\s[0-9.]+\s*$", "", rule["expr"])
            assert source.now(rule.get("record", compared)), f"{compared} has no data"
        page = fetch(served.server.url + "/metrics", missing="").decode()
        lint = run(binaries / "promtool", "check", "metrics", input=page)
        pictures = CliRunner().invoke(
            app, ["dashboard", "render", url, "--output", str(tmp_path), "--last", "0.7"]
        )
    assert [query for query, reason in silent.items() if reason is None] == []
    print(f"expected to be empty, and so they were: {silent}")
    ours = [line for line in lint.splitlines() if line.startswith("tokenflow:")]
    assert [line for line in ours if TOLERATED not in line] == []
    assert ours, "promtool has looked at our metrics"
    assert pictures.exit_code == 0, pictures.output
    assert {path.stem for path in tmp_path.glob("*.png")} == {board.uid for board in BOARDS}
    healthy = source.now("count by (alertname) (ALERTS)")
    print(f"alerts: {healthy}")
    assert {labels["alertname"] for labels, _ in healthy} <= {rule.get("alert") for rule in rules}
