"""What a release says of itself, in one voice: versions, SGLang's release, what workflows call."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_versions_are_one() -> None:
    emulator = tomllib.loads((ROOT / "emulator/pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = re.findall(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert emulator["version"] == citation["version"] == PROJECT["version"]
    assert changes[:2] == ["Unreleased", PROJECT["version"]]


def test_the_image_has_the_sglang_that_is_served() -> None:
    (pinned,) = PROJECT["optional-dependencies"]["sglang"]
    image = re.search(r"^FROM \S+/sglang:v(\S+)$", (ROOT / "Containerfile").read_text(), re.M)
    assert image is not None and pinned == f"sglang=={image[1]}"
    table = (ROOT / "docs/upgrade.md").read_text()
    assert f"| {PROJECT['version'].rpartition('.')[0]} | {image[1]} |" in table


def test_workflows_call_targets_that_there_are() -> None:
    called: set[str] = set()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        for job in jobs:
            targets = job.get("strategy", {}).get("matrix", {}).get("target", [])
            for step in job["steps"]:
                name = step.get("run", "").partition("make ")[2].split("\n")[0]
                called |= set(targets) if "matrix.target" in name else {name} - {""}
    assert called >= {"lint", "test", "site"}
    command = ["make", "--dry-run", *sorted(called)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
