"""Runs SGLang's own tests as stock, with the scheduler, and with forced pauses.

    python -m porting.sglang_tests ~/sglang/test --only '*/scheduler/*' --logs /tmp/logs

The folder is a clone's: the tests are no part of SGLang's package, and none of them is kept here.
Servers run on the emulator's platform with a tiny model, so what needs a GPU or a real model fails
as stock, too, and does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from porting.case_outcomes import FAILED, PASSED, PATH, SKIPPED, outcomes
from porting.forks import warm_forks
from porting.sglang_launch import FLAGS, LAUNCHER, MODEL, OPTIONS
from tokenflow_sgl_emulator.models import make_tiny_model

ROOT = Path(__file__).parent.parent
POLICIES = ROOT / "tests" / "helpers" / "server_side"
PLUGINS = ("porting.sglang_launch", "porting.case_outcomes")
STOCK, OURS, PAUSES = "stock", "ours", "pauses"
_OURS = ("--scheduler", "tokenflow")
MODES: dict[str, tuple[str, ...]] = {
    STOCK: (),
    OURS: _OURS,
    PAUSES: (*_OURS, "--tokenflow-policy", "forced:PreemptEvery"),
}
"""Options of every server, by what they are for."""
CASE_SECONDS = 180.0
FILE_CASES = 20
"""A file may take as long as so many cases; those that are left then are not run."""
WIDTH = 80
Outcomes = Mapping[str, str]
"""By the name of a case: passed, failed or skipped."""


@dataclass(frozen=True)
class FileRun:
    """What became of one file.

    Attributes:
        name: Its path below the folder.
        outcomes: Of each mode that it was run in.
    """

    name: str
    outcomes: Mapping[str, Outcomes]

    def passed(self, mode: str) -> int:
        """How many cases."""
        return sum(each == PASSED for each in self.outcomes.get(mode, {}).values())

    @property
    def differing(self) -> Iterator[tuple[str, str, str]]:
        """Cases that pass as stock and not otherwise: mode, case, what became of it."""
        for mode in self.outcomes:
            for case, outcome in self.outcomes[STOCK].items():
                other = self.outcomes[mode].get(case, "not run")
                if outcome == PASSED and other != PASSED:
                    yield mode, case, other


def main(arguments: list[str] | None = None) -> int:
    """Prints a table; returns 0: no case fails with ours only, 1: one does, 2: none ran well."""
    given = _options().parse_args(arguments)
    files = list(chosen(given.folder, given.only))
    if not files:
        print(f"sglang_tests: no file {given.only} in {given.folder}", file=sys.stderr)
        return 2
    runs = list(run_all(given.folder, files, given))
    if given.json is not None:
        data = {each.name: each.outcomes for each in runs}
        given.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for line in report(runs):
        print(line)
    if not any(each.passed(STOCK) for each in runs):
        return 2
    return 1 if any(any(each.differing) for each in runs) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sglang_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="SGLang's tests, or a part of them")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="paths below the folder"
    )
    parser.add_argument(
        "--modes", nargs="+", default=[OURS, PAUSES], choices=[OURS, PAUSES], help="beside stock"
    )
    parser.add_argument("--logs", type=Path, help="a folder for what pytest and servers print")
    parser.add_argument("--json", type=Path, help="a file for the outcome of each case")
    parser.add_argument("--case-seconds", type=float, default=CASE_SECONDS, metavar="S")
    parser.add_argument("--cases", default="", metavar="EXPRESSION", help="as pytest's -k")
    parser.add_argument(
        "--options", default="", help="of every server, as stock, too: '--allow-auto-truncate'"
    )
    parser.add_argument(
        "--vocab", type=int, default=512, help="of the tiny model: above the ids that tests give"
    )
    parser.add_argument(
        "--all-tokens", action="store_true", help="the tiny model may also end its answers"
    )
    return parser


def chosen(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Files of tests, in their order."""
    for path in sorted(folder.rglob("test_*.py")):
        if any(fnmatch(str(path.relative_to(folder)), pattern) for pattern in patterns):
            yield path


# ---- running ----------------------------------------------------------------------------


def run_all(folder: Path, files: Sequence[Path], given: argparse.Namespace) -> Iterator[FileRun]:
    """Each file in each mode; one of which nothing passes as stock in that mode only."""
    with tempfile.TemporaryDirectory() as own, warm_forks(Path(own)) as launcher:
        model = make_tiny_model(
            Path(own, "tiny"),
            "qwen3",
            layers=2,
            vocab=given.vocab,
            words_only=not given.all_tokens,
        )
        logs = given.logs or Path(own, "logs")
        logs.mkdir(parents=True, exist_ok=True)
        for path in files:
            name = str(path.relative_to(folder))
            found: dict[str, Outcomes] = {}
            for mode in (STOCK, *given.modes):
                if mode != STOCK and PASSED not in found[STOCK].values():
                    continue
                env = environment(launcher, model, MODES[mode], given.options)
                log = logs / f"{name.replace('/', '.')}.{mode}.log"
                found[mode] = run_file(
                    launcher, path, env, log, given.case_seconds, cases=given.cases
                )
                counts = ", ".join(
                    f"{sum(each == what for each in found[mode].values())} {what}"
                    for what in (PASSED, FAILED, SKIPPED)
                )
                print(f"{name}, {mode}: {counts}", file=sys.stderr, flush=True)
            yield FileRun(name, found)


def environment(
    launcher: Sequence[str], model: Path, flags: Sequence[str], options: str = ""
) -> dict[str, str]:
    """The variables of a run."""
    paths = (str(ROOT), str(ROOT / "emulator" / "src"), str(POLICIES), os.getenv("PYTHONPATH"))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SGLANG_PLATFORM": "tokenflow_emu",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        LAUNCHER: json.dumps(list(launcher)),
        MODEL: str(model),
        FLAGS: json.dumps(list(flags)),
        OPTIONS: options,
    }


def run_file(
    launcher: Sequence[str],
    path: Path,
    env: dict[str, str],
    log: Path,
    case_seconds: float,
    *,
    cases: str = "",
) -> Outcomes:
    """The outcomes of its cases, as far as it came. pytest is a fork, as servers are."""
    found = log.with_suffix(".jsonl")
    found.unlink(missing_ok=True)
    command = [
        *(*launcher, "pytest", "-q", "-s", *(f"-p{each}" for each in PLUGINS)),
        *("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(path.parent)),
        *("--timeout", str(case_seconds), "-k", cases, str(path)),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env={**env, PATH: str(found)},
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(FILE_CASES * case_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # servers that a test has left, too
            process.wait()
    return outcomes(found)


# ---- the report -------------------------------------------------------------------------


def report(runs: Sequence[FileRun]) -> Iterator[str]:
    """The verdict, a row for each file, and the cases that fail with ours only."""
    differing = [(run.name, *each) for run in runs for each in run.differing]
    passed = sum(run.passed(STOCK) for run in runs)
    cases = len({(name, case) for name, _, case, _ in differing})
    yield from textwrap.wrap(
        f"{cases or 'None'} of the {passed} cases that pass as stock "
        f"{'fail' if cases > 1 else 'fails'} with --scheduler tokenflow",
        WIDTH,
    )
    yield ""
    yield f"{'cases':>6}{STOCK:>8}{OURS:>8}{PAUSES:>8}  file"
    for run in runs:
        counts = (
            f"{run.passed(mode) if mode in run.outcomes else '-':>8}"
            for mode in (STOCK, OURS, PAUSES)
        )
        yield f"{len(run.outcomes[STOCK]):>6}{''.join(counts)}  {run.name[-48:]}"
    totals = "".join(f"{sum(run.passed(mode) for run in runs):>8}" for mode in MODES)
    yield f"{sum(len(run.outcomes[STOCK]) for run in runs):>6}{totals}  in all"
    if differing:
        yield ""
        yield "Passes as stock, and otherwise:"
    for name, mode, case, outcome in differing:
        yield from textwrap.wrap(f"{mode}, {outcome}: {name}::{case.partition('::')[2]}", WIDTH)


if __name__ == "__main__":
    sys.exit(main())
