"""The doctor's short way to SGLang's parser: what it finds is what a whole import finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine

LINES = [
    ["--model-path", "some/model"],
    ["--model-path", "some/model", "--scheduler", "tokenflow"],
    ["--model-path", "some/model", "--scheduler", "tokenflow", "--pp-size", "2"],
    ["--model-path", "some/model", "--scheduler", "tokenflow", "--tokenflow-eta", "99"],
    ["--model-path", "some/model", "--no-such-option", "3"],
    ["--model-path", "some/model", "--tp-size", "many"],
    ["--model-path", "some/model", "--scheduler", "tokenflow", "--tokenflow-hicache", "off"],
    ["--model-path", "some/model", "--tokenflow-restore", "auto"],
    ["--model-path", "some/model", "--scheduler", "tokenflow", "--hicache-size", "7"],
]
JUDGE = """
import json, sys
{begin}
from tokenflow_sgl.engine.launching import try_launch
from tokenflow_sgl.engine.launch_verdict import judge
found = []
for line in json.loads(sys.argv[1]):
    launch = try_launch([*line, "--device", "cpu"])
    found.append([launch.scheduler, launch.refusal, launch.model, launch.storage])
    found.append(repr(judge(line)))
print(json.dumps({{"found": found, "transformers": "transformers" in sys.modules}}))
"""


def judged(begin: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", JUDGE.format(begin=begin), json.dumps(LINES)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_verdicts_are_those_of_a_whole_import_without_what_it_takes() -> None:
    short = judged("")
    long = judged("import sglang, sglang.srt.entrypoints.http_server")
    assert short["found"] == long["found"]
    assert any("refuses" in str(each) for each in short["found"])
    assert long["transformers"] and not short["transformers"]


def test_the_package_is_whole_as_soon_as_it_is_asked() -> None:
    code = """
import sys
from tokenflow_sgl.engine.light_sglang import light, whole
light()
import sglang, sglang.srt.environ
assert "transformers" not in sys.modules
assert not hasattr(sglang, "__no_such__") and "transformers" not in sys.modules
assert sglang.__version__ and "transformers" in sys.modules
from sglang import Engine, gen
assert sys.modules["sglang"] is sglang and sglang.srt.environ
whole(), light()
assert sglang.gen is gen
try:
    sglang.no_such_name
except AttributeError:
    print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


def test_a_doctor_says_what_the_flag_takes_and_imports_no_transformers(tmp_path) -> None:
    (tmp_path / "own.toml").write_text("[policy]\nprefill_chunk = 512\n")
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('transformers' in sys.modules))\n"
        "from tokenflow_sgl.cli import main; main()"
    )
    options = ("--model-path", "some/model", "--scheduler", "tokenflow", "--device", "cpu")
    more = ("--hicache-size", "3", "--tokenflow-tuning", str(tmp_path / "own.toml"))
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--", *options, *more],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "HiCache is switched on by --scheduler tokenflow; 3.0 GB of host memory" in done.stdout
    assert "mixed chunks            on under stress" in done.stdout
    assert "at most 512 tokens a step while streams decode (prefill_chunk)" in done.stdout
    assert f"{tmp_path / 'own.toml'}: prefill_chunk = 512" in done.stdout
    assert done.stdout.endswith("False\n"), "transformers was imported"
