"""Proves this package on the installed SGLang, and writes that down if nothing fails.

    make prove                              # on the newest release
    make prove SGLANG=0.5.22                # on that one, in its own environment

Runs what tells whether a release is served truly: every seam, the bodies against each other,
tokens against undisturbed runs, and the attackers. The start refuses releases that are not in
`tokenflow_sgl/engine/sglang/proved.json`, the file that is written.

What has passed on a commit is kept in `.prove`, so that a call goes on where another was cut off.
Some checks alone can be named; the last of all that passes writes the file.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from tokenflow_sgl.engine.sglang.seam import UNPROVED_VARIABLE
from tokenflow_sgl.engine.sglang.version import PROVED, installed_sglang, numbers

ROOT = Path(__file__).parent.parent
CHECKS = {
    "seams": ("tests/unit/engine",),
    "conformance": ("tests/conformance",),
    "identity": (
        "tests/live/test_identity.py",
        "tests/live/test_identity_drafts.py",
        "tests/live/test_identity_drafts_in_windows.py",
        "tests/live/test_identity_models.py",
        "tests/live/test_identity_together.py",
        "tests/live/test_decode_server.py",
        "tests/live/test_compressed_decode.py",
    ),
    "attacks": ("tests/attacks",),
}
"""Folders and files of tests by what they prove, in the order in which they run."""
ALL = "slow or not slow"
"""What pytest is asked for: those that `make test` leaves out, too."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks; returns 0: all passed and the release is written down, 1: not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checks", nargs="*", help=f"some of {', '.join(CHECKS)}; default: all")
    parser.add_argument("--proved", type=Path, default=PROVED, help="the file that is written")
    given = parser.parse_args(arguments)
    if unknown := [each for each in given.checks if each not in CHECKS]:
        parser.error(f"{unknown[0]!r} is no check: choose from {', '.join(CHECKS)}")
    release = installed_sglang()
    if release is None:
        print("prove: SGLang is not installed: make install", file=sys.stderr)
        return 1
    kept = kept_of(release)
    passed = json.loads(kept.read_text(encoding="utf-8")) if kept and kept.exists() else {}
    for name in given.checks or CHECKS:
        if name in passed:
            print(f"prove: {name}: {passed[name]} passed before, on this commit")
            continue
        count = run(name, release)
        if count is None:
            print(f"prove: SGLang {release} is not proved: {name} failed, see above")
            return 1
        passed[name] = count
        if kept:
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps(passed), encoding="utf-8")
    if left := [name for name in CHECKS if name not in passed]:
        print(f"prove: passed on SGLang {release}; left, before it is proved: {', '.join(left)}")
        return 0
    write(given.proved, release, {name: passed[name] for name in CHECKS})
    print(f"prove: SGLang {release} is proved, and written into {given.proved}")
    return 0


def kept_of(release: str) -> Path | None:
    """Where it is kept what has passed on this commit; None: files differ from the commit's."""
    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return None if changed or not commit else ROOT / ".prove" / f"{release}-{commit}.json"


def git(*arguments: str) -> str:
    """What Git says, without spaces around it; empty where there is no repository."""
    said = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


def run(name: str, release: str) -> int | None:
    """Run one of `CHECKS`; returns how many tests passed, None if one failed or none ran."""
    print(f"prove: SGLang {release}, {name}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        given = ("-q", "-m", ALL, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *given, f"--junitxml={report}", *CHECKS[name]],
            cwd=ROOT,
            env={**os.environ, UNPROVED_VARIABLE: "1"},  # it cannot have been proved before
            check=False,
        )
        count = passed_in(report) if report.exists() else 0
    print(f"prove: {name}: {count} passed, {time.monotonic() - began:.0f} s", flush=True)
    return count if ended.returncode == 0 and count else None


def passed_in(report: Path) -> int:
    """How many tests passed, of a report of pytest's."""
    cases = ET.parse(report).getroot().iter("testcase")
    return sum(all(each.tag.startswith("system-") for each in case) for case in cases)


def write(proved: Path, release: str, passed: dict[str, int]) -> None:
    """Add a release to the file, with what passed on it."""
    rows = json.loads(proved.read_text(encoding="utf-8")) if proved.exists() else {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows[release.partition("+")[0]] = {
        "on": today,
        "tokenflow_sgl": importlib.metadata.version("tokenflow-sgl"),
        "passed": passed,
    }
    ordered = {version: rows[version] for version in sorted(rows, key=numbers)}
    proved.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
