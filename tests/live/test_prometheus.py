"""A real Prometheus scrapes a real server under load: every query of ours has an answer."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented.collected import PAGES, ROOT
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.lab.demo.server import free_port
from tokenflow_sgl.lab.observe import ScrapeError, fetch
from tokenflow_sgl.lab.observe.dashboards import BOARDS
from tokenflow_sgl.lab.observe.dashboards.prometheus_source import EVERYTHING, Prometheus

pytestmark = pytest.mark.engine

GRAFANA = Path(__file__).parents[2] / "grafana"
RULES = GRAFANA / "prometheus"
CACHE = Path.home() / ".cache" / "tokenflow-sgl" / "prometheus"
LOAD_SECONDS = 90.0
"""Six scrapes and evaluations of the rules, after they have something to evaluate."""
RATE_INTERVAL = "60s"
"""Four of the configuration's scrapes, as in Grafana."""
HEADER = "x-llm-d-fairness-id"
TENANTS = "[tenants.mine]\nweight = 2\n\n[tenants.capped]\nstreams = 1\n"
TENANT_OF = ("mine", "capped", "another", "capped")
"""Of four clients in turn: one of two `capped` ones is refused."""
CLASS_OF = ("reading", "listening", "agent")
AGAIN_SECONDS = 1.0
"""After which a refused client comes again, as it is told to."""
DEADLINE = 20.0
"""Seconds within which every third client wants its whole answer."""
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
        (tmp_path / name).write_text(text.replace("> 0.05", "> 0.5"))
    out = run(binaries / "promtool", "test", "rules", "rules_test.yml", cwd=tmp_path)
    assert "FAILED" in out


def test_queries_of_the_docs_are_queries(binaries, tmp_path) -> None:
    found = [
        query
        for page in PAGES
        for query in re.findall(r"^```promql\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    ]
    assert len(found) >= 8
    rules = [{"record": f"documented:{at}", "expr": query} for at, query in enumerate(found)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}))
    out = run(binaries / "promtool", "check", "rules", path)
    assert "exit code" not in out, out
    path.write_text(path.read_text().replace("sum", "summ", 1))
    assert "exit code" in run(binaries / "promtool", "check", "rules", path), "the control"


RECORDED = Path(__file__).parents[1] / "unit" / "observe" / "dashboards" / "recorded_series.json"
"""What a Prometheus scraped every 15 s of a server on an emulated RTX 4090: a minute idle, four
minutes with more readers than it can serve (`4090-c?scale=0.15`), six and a half minutes idle with
its host pool as it was left, two and a half after it was stopped."""
MINUTES = 14


def fired(binaries: Path, folder: Path, rules: str) -> dict[str, set[int]]:
    """In which minutes of the recorded series which alert of these rules fires."""
    rules_file = yaml.safe_load(rules)
    names = [
        rule["alert"]
        for group in rules_file["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    (folder / "rules.yml").write_text(rules)
    series = [
        {"series": name, "values": values}
        for name, values in json.loads(RECORDED.read_text()).items()
    ]
    asked = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for name in names
        for minute in range(MINUTES + 1)
    ]
    test = {"interval": "15s", "input_series": series, "alert_rule_test": asked}
    (folder / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [test]})
    )
    out = run(binaries / "promtool", "test", "rules", "test.yml", cwd=folder)
    # Each that fires is one that was not expected.
    found = re.findall(r"alertname: (\w+), time: (?:(\d+)m)?", out)
    assert found or "SUCCESS" in out, out
    by_name: dict[str, set[int]] = {}
    for name, minute in found:
        by_name.setdefault(name, set()).add(int(minute or 0))
    return by_name


def test_alerts_of_a_real_server(binaries, tmp_path) -> None:
    """Late first texts while it has too many readers, nothing when it is idle, then its end."""
    found = fired(binaries, tmp_path, (RULES / "rules.yml").read_text())
    # The load ends in the fifth minute, and a rate of five minutes looks back on it.
    late = {"TokenflowFirstTextLate": {4, 5, 6, 7, 8}}
    assert found == {**late, "TokenflowServerDown": {13, 14}}


def test_a_full_host_pool_of_an_idle_server_is_no_alert(binaries, tmp_path) -> None:
    """Control: what was recorded would have set off the alert on memory that there once was."""
    full = """
groups:
  - name: memory
    rules:
      - alert: Full
        expr: sglang:hicache_host_used_tokens / sglang:hicache_host_total_tokens > 0.7
        for: 5m
"""
    assert max(fired(binaries, tmp_path, full)["Full"]) == 11, "idle since the fifth minute"


def inside(service: str, root: Path) -> dict[str, Any]:
    """A service of the compose file, with the files that it mounts where they are in its container.

    root: What stands for the container's root folder.
    """
    compose: dict[str, Any] = yaml.safe_load((GRAFANA / "docker-compose.yml").read_text())
    found: dict[str, Any] = compose["services"][service]
    for volume in found["volumes"]:
        source, target, mode = volume.split(":")
        assert mode == "ro"
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if (GRAFANA / source).is_dir():
            shutil.copytree(GRAFANA / source, path)
        else:
            shutil.copy(GRAFANA / source, path)
    return found


def contained(command: list[str], root: Path, port: int) -> list[str]:
    """A service's own command with its folders below another root, on another port of loopback."""
    return [
        option.replace("=/", f"={root}/").replace("127.0.0.1:9090", f"127.0.0.1:{port}")
        for option in command
    ]


def test_the_compose_file_reaches_a_server_that_listens_where_sglang_does(tmp_path) -> None:
    from sglang.srt.server_args import ServerArgs

    prometheus, grafana = (inside(name, tmp_path) for name in ("prometheus", "grafana"))
    config = yaml.safe_load((tmp_path / "etc/prometheus/prometheus.yml").read_text())
    default = ServerArgs(model_path="dummy")
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{default.host}:{default.port}"]}]
    # That is a loopback address, which is the machine's own only on the host's network.
    assert ipaddress.ip_address(default.host).is_loopback
    for service in (prometheus, grafana):
        assert service["network_mode"] == "host"
        assert "ports" not in service, "Docker publishes none there"
    # Nothing listens elsewhere, and Grafana asks where Prometheus listens.
    assert "--web.listen-address=127.0.0.1:9090" in prometheus["command"]
    listens = {"GF_SERVER_HTTP_ADDR": "127.0.0.1", "GF_SERVER_HTTP_PORT": "3000"}
    assert grafana["environment"] == listens
    sources = yaml.safe_load(
        (tmp_path / "etc/grafana/provisioning/datasources/prometheus.yml").read_text()
    )
    assert [each["url"] for each in sources["datasources"]] == ["http://127.0.0.1:9090"]
    (provider,) = yaml.safe_load(
        (tmp_path / "etc/grafana/provisioning/dashboards/tokenflow.yml").read_text()
    )["providers"]
    boards = list((tmp_path / provider["options"]["path"].lstrip("/")).glob("*.json"))
    assert {path.stem for path in boards} == {board.uid for board in BOARDS}


def test_the_mounted_configuration_is_valid_with_its_rules(binaries, tmp_path) -> None:
    inside("prometheus", tmp_path)
    out = run(binaries / "promtool", "check", "config", tmp_path / "etc/prometheus/prometheus.yml")
    assert "exit code" not in out, out
    assert "1 rule files found" in out
    assert re.search(r"rules\.yml.*\n.*SUCCESS: [0-9]+ rules found", out), out


@pytest.fixture(scope="module")
def watched(start, binaries, tmp_path_factory):
    """A server with more streams than it has memory for, and the Prometheus that scrapes it."""
    root = tmp_path_factory.mktemp("container")
    flags = ("--scheduler", "tokenflow", "--max-total-tokens", "1500", "--hicache-ratio", "4")
    tenants = root / "classes.toml"
    tenants.write_text(TENANTS)
    flags += ("--tokenflow-tenant-by", f"header:{HEADER}", "--tokenflow-classes", str(tenants))
    # Copies that are late are also timed, so that the server gets to know its link.
    with start(*flags, env={"TOKENFLOW_EMU_LATE_COPIES": "2"}) as served:
        target = served.server.url.removeprefix("http://")
        # The very files and command of the compose file; of the server's address only the port
        # is another one, for several tests may run on this machine.
        service = inside("prometheus", root)
        path = root / "etc/prometheus/prometheus.yml"
        text = path.read_text()
        assert text.count("127.0.0.1:30000") == 1
        path.write_text(text.replace("127.0.0.1:30000", target))
        port = free_port()
        command = [str(binaries / "prometheus"), *contained(service["command"], root, port)]
        with (root / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            sides = {"baseline": target, "candidate": target}
            source = Prometheus(f"http://127.0.0.1:{port}", {**EVERYTHING, **sides}, RATE_INTERVAL)
            yield served, source, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def load(served, prompts):
    """Readers of all classes and tenants that come in bursts, until the block is left."""
    over = threading.Event()

    def ask(number: int) -> None:
        terms: dict[str, Any] = {"tokenflow_class": CLASS_OF[number % 3]}
        if number % 3 == 2:
            terms["tokenflow_deadline"] = DEADLINE
        params = {"temperature": 0, "max_new_tokens": 300, "custom_params": terms}
        ids = prompts[number % len(prompts)]
        body = {"input_ids": ids, "sampling_params": params, "stream": True}
        while not over.is_set():
            answer = served.post("/generate", body, {HEADER: TENANT_OF[number % 4]})
            if answer.status != 200:
                assert answer.status == 429
                over.wait(AGAIN_SECONDS)

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join()


def should_have_data() -> dict[str, str]:
    """Expressions of panels, rules and alerts that are never without data, by what they are of."""
    found = {
        f"{board.title}, {panel.title}: {query.expr}": query.expr
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if query.empty is None
    }
    for rule in all_rules():
        name = rule.get("record") or compared(rule["expr"])
        found[name] = name
    return found


def compared(expr: str) -> str:
    """What an alert compares: it has data always, and the alert itself in trouble only."""
    first = re.split(r"\n\s*(?:and|unless)\b", expr)[0]
    first = re.sub(r"^absent\((.*)\)$", r"\1", first.strip())
    return re.sub(r"\s(>|==)\s[0-9.]+$", "", first)


def all_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def without_data(source: Prometheus, expected: dict[str, str]) -> dict[str, str]:
    """Those of the expressions that have no data now, or no answer in time."""
    silent = {}
    for name, expr in expected.items():
        with contextlib.suppress(ScrapeError):
            if source.now(expr):
                continue
        silent[name] = expr
    return silent


@pytest.mark.slow
def test_every_panel_rule_and_alert_has_data(watched, prompts, binaries, tmp_path) -> None:
    served, source, url = watched
    with load(served, prompts):
        end = time.monotonic() + 120.0
        while time.monotonic() < end:
            with contextlib.suppress(ScrapeError):
                if source.now("tokenflow:preemptions_total > 0"):
                    break
            time.sleep(1.0)
        time.sleep(LOAD_SECONDS)
        expected = should_have_data()
        end = time.monotonic() + 120.0
        # Each has data now and then: where one has none, scrapes came late, and more come.
        while (silent := without_data(source, expected)) and time.monotonic() < end:
            expected = silent
            time.sleep(1.0)
        page = fetch(served.server.url + "/metrics", missing="").decode()
        lint = run(binaries / "promtool", "check", "metrics", input=page)
        pictures = CliRunner().invoke(
            app, ["dashboard", "render", url, "--output", str(tmp_path), "--last", "0.7"]
        )
    assert silent == {}
    ours = [line for line in lint.splitlines() if line.startswith("tokenflow:")]
    assert [line for line in ours if TOLERATED not in line] == []
    assert ours, "promtool has looked at our metrics"
    assert pictures.exit_code == 0, pictures.output
    assert {path.stem for path in tmp_path.glob("*.png")} == {board.uid for board in BOARDS}
    healthy = source.now("count by (alertname) (ALERTS)")
    print(f"alerts: {healthy}")
    assert {labels["alertname"] for labels, _ in healthy} <= {
        rule.get("alert") for rule in all_rules()
    }
