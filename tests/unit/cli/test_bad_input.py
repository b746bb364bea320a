"""Every command, fed random bad input: one sentence, a documented exit code, nothing left behind.

Commands run in this process with the work itself replaced, so that no server starts. A value that
is certainly bad must be refused before the work begins; one that is merely hostile may be taken.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
import resource
import shutil
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.failing import Exit
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.traces.spec import FORMATS

ALLOWED = {0, *Exit}
NOWHERE = "http://127.0.0.1:9"
ROOM = 3 << 30
"""Bytes of address space beyond what is taken: what asks for more fails instead of swapping."""


class Began(Exception):
    """Raised in place of the work."""


@dataclass(frozen=True)
class Option:
    """An option or argument: how it is typed, what it takes, and whether it must be there."""

    name: str
    flag: str | None  # None: an argument
    kind: Any
    info: Any
    required: bool

    def typed(self, *values: str) -> list[str]:
        return list(values) if self.flag is None else [f"{self.flag}={each}" for each in values]


def commands(tree: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for command in tree.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        yield (*path, name), command.callback
    for group in tree.registered_groups:
        yield from commands(group.typer_instance, (*path, group.name))


def options(callback: Callable[..., Any]) -> list[Option]:
    found = []
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, *infos = typing.get_args(hints[name]) or (None,)
        info = next((each for each in infos if hasattr(each, "param_decls")), None)
        if info is None:
            continue  # the context, which is not typed
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        if typing.get_origin(kind) is list:
            (kind,) = typing.get_args(kind)
        flag = None
        if isinstance(info, typer.models.OptionInfo):
            long = [each for each in info.param_decls or () if each.startswith("--")]
            flag = long[0].partition("/")[0] if long else f"--{name.replace('_', '-')}"
        required = parameter.default is inspect.Parameter.empty
        found.append(Option(name, flag, kind, info, required))
    return found


COMMANDS = {" ".join(path): options(callback) for path, callback in commands(app)}

# ---- values --------------------------------------------------------------------------

FILES = ("missing", "folder", "empty", "binary", "text.csv", "null.json", "tiny.jsonl")
NUMBERS = ("0", "-1", "1", "0.5", "-0.0", "1e-300", "1e300", "-1e300", "1e18", "9" * 30, "nan")
NUMBERS += ("inf", "-inf", "", " ", "abc", "0x10", "1_0", "1,5", "²", "9" * 5000)
KEYS = ("seed", "scale", "duration", "start", "spread", "speed", "max_context", "share", "limit")
KEYS += ("ttft_slo", "tbt_slo", "sort", "readers", "arrivals", "think", "rate", "run", "lengths")
FREE = ("", " ", "x", "-", "--", "a" * 300, "ä€😀", "[red]", "%s{}", "..", "0:", ":", "=", "1=")
URLS = ("", "x", "http://", "ftp://127.0.0.1", "http://127.0.0.1:99999", "http://[", "//a", "a b")

number = st.sampled_from(NUMBERS)
file = st.sampled_from(FILES)


@st.composite
def filled(draw: Any, *forms: str) -> str:
    """One of these forms with a random number, file or key in each place."""
    form = draw(st.sampled_from(forms))
    while "{" in form:
        for place, values in (("{n}", number), ("{f}", file), ("{k}", st.sampled_from(KEYS))):
            form = form.replace(place, draw(values), 1) if place in form else form
    return form


HOSTILE_TEXT: dict[str, Any] = {
    "spec": filled(
        *("h200-a?{k}={n}", "h200-c?limit=2&{k}={n}&{k}={n}", "tiny.jsonl?{k}={n}", "{f}", "{f}?"),
        *(f"{name}:{{f}}" for name in FORMATS),
        *(f"{name}:{{f}}?arrivals=poisson&rate={{n}}&think=none&{{k}}={{n}}" for name in FORMATS),
    ),
    "arrivals": filled(
        *("poisson:rate={n}", "gamma:rate={n},cv={n}", "onoff:rate={n},on_s={n},off_s={n}"),
        *("diurnal:rate={n},amplitude={n}", "burst:size={n}", "burst:size={n},every_s={n}", "x"),
    ),
    "lengths": filled("like={f}", "like=h200-a?{k}={n}", "long-context-8k", "x"),
    "prompts": filled("fixed:tokens={n}", "normal:mean={n},sd={n}", "lognormal:mean={n},cv={n}"),
    "sessions": filled("turns={n},think_s={n}", "turns=2,think_s={n},groups={n}", "turns=2"),
    "priorities": filled("random:frequency={n},levels={n},active_s={n}", "markov:frequency={n}"),
    "rates": filled("{n}", "{n}/{n}", "{n}={n}/{n}={n}"),
    "window": filled("{n}:{n}", "{n}"),
    "goal": filled("ttft<={n}", "{k}<={n}", "stall<={n},ttft<={n}", "ttft{n}"),
    "sweep": filled("eta={n}", "{k}={n}", "park={n},true", "cycle={n},{n}"),
    "policy": filled("fcfs,{f}", "{f}:X", "os:path", "tokenflow,,", "json:JSONDecoder"),
    "warm_up": filled("{n}", "{n}s"),
    "url": st.sampled_from((*URLS, NOWHERE)),
    "at": filled("{n}:{n}:{n}", "{n}"),
    "time_dilation": filled("{n}"),
    "tokens": filled("{n}"),
}
SAME = {"trace": "spec", "check": "spec", "outputs": "prompts", "rate": "rates", "live": "url"}
SAME |= {"prometheus": "url", "token_ids": "window"}


def hostile(option: Option) -> Any:
    """Values that may be refused or not."""
    if option.kind in (int, float):
        return number
    if option.kind is Path:
        return st.sampled_from((*FILES, *UNWRITABLE, "new", "new/er/file", "a" * 300))
    if isinstance(option.kind, type) and issubclass(option.kind, enum.Enum):
        return st.sampled_from((*(str(each.value) for each in option.kind), *FREE))
    known = HOSTILE_TEXT.get(SAME.get(option.name, option.name))
    free = st.sampled_from(FREE) | st.text(st.characters(blacklist_categories=("Cs", "Cc")))
    return free if known is None else known | free


UNWRITABLE = ("/proc/x", "/proc/x/y.png", "binary/x.png")
"""Even for the superuser."""
BAD_TEXT = {
    "spec": ("", "missing.jsonl", "empty.jsonl", "native:binary", "h200-a?limit=0", "h200-a?x=1"),
    "arrivals": ("", "x", "poisson", "poisson:rate=nan", "poisson:rate=1e300", "burst:size=0"),
    "lengths": ("", "x", "like=", "like=missing.jsonl"),
    "prompts": ("", "x", "fixed", "fixed:tokens=0", "fixed:tokens=nan"),
    "sessions": ("", "x", "turns=nan,think_s=1", "turns=2,think_s=1e300"),
    "priorities": ("x", "random", "random:frequency=nan,levels=2,active_s=1"),
    "rates": ("", "x", "0", "-1", "nan", "inf", "1=0/2=0"),
    "window": ("", "x", "0", "0:nan", "nan:1", "-1:5", "0:0"),
    "goal": ("", "x", "ttft", "ttft<=", "ttft<=nan", "x<=1", "ttft<=1,ttft<=1", "stall<=-1"),
    "sweep": ("", "x", "x=1", "eta=nan", "eta=", "eta=-1"),
    "policy": ("", "x", "x:Y", "json:JSONDecoder", "fcfs,"),
    "warm_up": ("", "x", "-1", "nans", "-1s"),
    "url": URLS,
    "time_dilation": ("", "x", "0", "-1", "nan", "1e4"),
    "api_key_env": ("", "NO_SUCH_VARIABLE"),
    "tokens": ("", "x", "0", "-1", "nan", "1.5", "1e3", "9" * 30),
}


def bad(option: Option) -> tuple[str, ...]:
    """Values that no command may take; none where every text is fine."""
    if option.kind is int:
        return ("", "abc", "1.5", "nan", "1e3")
    if option.kind is float:
        return ("", "abc", "nan", "-inf")
    if option.kind is Path:
        if option.name in ("output", "html", "plot", "save"):
            folders_only = not getattr(option.info, "dir_okay", True)
            return (*UNWRITABLE, *(("folder",) if folders_only else ()))
        return ("missing", "folder", "binary", "null.json")
    if isinstance(option.kind, type) and issubclass(option.kind, enum.Enum):
        return ("", "magic")
    return BAD_TEXT.get(SAME.get(option.name, option.name), ())


NEEDED = {
    **{"spec": ["tiny.jsonl"], "trace": ["tiny.jsonl"], "output": ["new"], "url": [NOWHERE]},
    **{"prometheus": [NOWHERE], "runs": ["missing"], "log": ["missing"], "page": ["flags"]},
    **{"arrivals": ["poisson:rate=1"], "device": ["h200"], "model": ["llama3-8b"]},
    **{"measurements": ["text.csv"], "tokens": ["2000"]},
}
"""What a command needs at least."""
ALWAYS = {
    "trace make": ["--requests=3", "--lengths=long-context-8k"],
    "doctor": [f"--live={NOWHERE}"],
}


def line(command: str, chosen: dict[str, list[str]]) -> list[str]:
    """The command with these values, and what it needs besides."""
    words, arguments = command.split(), []
    for always in ALWAYS.get(command, ()):
        name = always[2:].partition("=")[0]
        if name not in chosen and not (name == "requests" and "duration" in chosen):
            words.append(always)
    for option in COMMANDS[command]:
        values = chosen.get(option.name) or (NEEDED[option.name] if option.required else [])
        (words if option.flag else arguments).extend(option.typed(*values))
    return [*words, "--", *arguments] if arguments else words


# ---- running -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[bool, int]]]:
    """Run a command in a folder of wrong inputs; returns whether the work began, and the code."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "text.csv").write_text("a,b\n1,2\n")
    (folder / "null.json").write_text("null\n")
    head = {"format": "tokenflow-trace", "version": 1, "updates": 0, "notes": []}
    for name, count in (("empty", 0), ("tiny", 2)):
        accounting = {"rows": count, "emitted": count, "dropped": {}}
        rows = [{**head, "name": name, "requests": count, "accounting": accounting}]
        request = {"prompt_tokens": 20, "output_tokens": 5, "rate": 10.0}
        rows += [{**request, "arrival_s": float(number)} for number in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = sorted(folder.rglob("*"))

    def work(*_: Any, **__: Any) -> Any:
        raise Began

    def invoke(words: list[str]) -> tuple[bool, int]:
        done = CliRunner().invoke(app, words)
        began = isinstance(done.exception, Began)
        strange = None if began or isinstance(done.exception, SystemExit) else done.exception
        assert strange is None, (words, repr(strange))
        left = sorted(set(folder.rglob("*")) - set(before))
        if began or done.exit_code == 0:
            for path in reversed(left):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            assert not left, (words, left)
            assert done.exit_code in ALLOWED, (words, done.exit_code)
            assert one_sentence(done.output), (words, done.output)
        return began, done.exit_code

    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("GRAFANA_TOKEN", "token")
        patch.setenv("COLUMNS", "400")
        patch.setattr(os, "execv", work)
        for target in (
            "tokenflow_sgl.lab.demo.run.run_demo",
            "tokenflow_sgl.lab.observe.live.serve_page",
            "tokenflow_sgl.lab.replay.target.find_target",
            "tokenflow_sgl.lab.replay.find_target",
            "tokenflow_sgl.cli.plan_output.planned",
            "tokenflow_sgl.lab.sim.simulate",
            "tokenflow_sgl.lab.sim.study.spread.on_cores",
            "tokenflow_sgl.lab.sim.study.spread.on_ray",
        ):
            patch.setattr(target, work)
        # What takes long and has tests of its own: read once, and not drawn.
        for module in ("tokenflow_sgl.lab.profiles", "tokenflow_sgl.lab.profiles.load"):
            patch.setattr(f"{module}.load_profile", functools.cache(load_profile))
        for picture in ("lab.profiles.profile_plot.plot", "lab.traces.trace_plot.draw"):
            patch.setattr(f"tokenflow_sgl.{picture}", lambda *_: None)
        tree = typer.main.get_command(app)  # else made anew for each run
        patch.setattr("typer.testing._get_command", lambda _: tree)
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, limits[1]))
        yield invoke
        resource.setrlimit(resource.RLIMIT_AS, limits)


def one_sentence(output: str) -> bool:
    """A message of one line, or typer's box with the usage above it."""
    lines = [each for each in output.splitlines() if each.strip()]
    if lines and lines[0].startswith("Usage:"):
        return any(each.startswith("│") for each in lines) and "Traceback" not in output
    return len(lines) == 1 and len(lines[0].split()) > 2 and "[Errno" not in output


CERTAINLY_BAD = [
    (command, option.name, value)
    for command, known in COMMANDS.items()
    for option in known
    for value in bad(option)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_certainly_bad_is_refused_before_the_work(run, command):
    for of, name, value in CERTAINLY_BAD:
        if of == command:
            words = line(command, {name: [value]})
            began, code = run(words)
            assert not began and code == Exit.usage, (words, began, code)


@pytest.mark.parametrize("command", [name for name, known in COMMANDS.items() if known])
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_hostile_input_never_ends_in_a_traceback(run, command, data):
    known = COMMANDS[command]
    chosen = data.draw(
        st.lists(st.sampled_from(known), max_size=4, unique_by=lambda each: each.name)
    )
    run(
        line(
            command,
            {each.name: [data.draw(hostile(each))] for each in chosen if each.kind is not bool},
        )
    )
