import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli import doctor_install, doctor_launch
from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.doctor_install import PLATFORM_GROUP, PLUGIN_GROUP, Check
from tokenflow_sgl.engine.sglang import seam_check, seam_source, version
from tokenflow_sgl.engine.sglang.ledger import ledger
from tokenflow_sgl.engine.sglang.version import proved_sglang


def run(*args):
    result = CliRunner().invoke(app, ["doctor", *args], env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def verdict(output):
    return output.strip().splitlines()[-1]


def point(group, name, value, distribution):
    dist = SimpleNamespace(name=distribution)
    return SimpleNamespace(group=group, name=name, value=value, dist=dist)


NEWEST = proved_sglang()[-1]
PLUGIN = point(PLUGIN_GROUP, "tokenflow", "tokenflow_sgl.engine.plugin:register", "tokenflow-sgl")
PLATFORM = point(PLATFORM_GROUP, "some_device", "some_device:activate", "some-device")


@pytest.fixture(autouse=True)
def healthy(monkeypatch):
    """An environment where all is well, without importing SGLang."""
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.setattr(version, "installed_sglang", lambda: NEWEST)
    monkeypatch.setattr(seam_source, "problem", lambda seam: None)
    monkeypatch.setattr(doctor_launch, "launch_checks", lambda options: [Check("device", "cuda")])
    install(monkeypatch, PLUGIN, PLATFORM)


def install(monkeypatch, *points):
    monkeypatch.setattr(
        doctor_install, "_points", lambda group: [each for each in points if each.group == group]
    )


def test_all_is_well():
    code, output = run()
    assert code == 0
    assert f"tokenflow-sgl {importlib.metadata.version('tokenflow-sgl')}".split() in [
        line.split() for line in output.splitlines()
    ]
    assert "a supported version" in output
    assert f"all {len(ledger())} hold" in output
    assert ledger()[0].target not in output
    assert verdict(output) == "Active with --scheduler tokenflow."


def test_seams_option_shows_every_row():
    code, output = run("--seams")
    assert code == 0
    for seam in ledger():
        assert seam.target in output
        assert seam.why in output


def test_sglang_is_not_installed(monkeypatch):
    monkeypatch.setattr(version, "installed_sglang", lambda: None)
    monkeypatch.setattr(seam_source, "problem", lambda seam: pytest.fail("nothing to look at"))
    code, output = run()
    assert code == 1
    assert verdict(output).startswith("Not active: SGLang is not installed.")
    assert "pip install sglang==" in verdict(output)


@pytest.mark.parametrize("other", ["0.5.21", "0.5.24", "0.9.9"])
def test_another_sglang_is_refused_as_the_start_does(monkeypatch, other):
    monkeypatch.setattr(version, "installed_sglang", lambda: other)
    code, output = run()
    assert code == 1
    assert f"{other}; supported: {version.proved()}" in output
    assert verdict(output).startswith(
        f"Not active: SGLang {other} is installed, which tokenflow was not proved on."
    )
    assert f"pip install sglang=={NEWEST}" in verdict(output)


def test_another_sglang_is_tried_where_the_launch_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(version, "installed_sglang", lambda: "0.5.99")
    monkeypatch.setattr(
        doctor_launch, "launch_checks", lambda options: [Check("options", "", active="these")]
    )
    line = ["--", "--scheduler", "tokenflow", "--tokenflow-unproved-sglang"]
    code, output = run(*line)
    assert code == 0
    assert f"0.5.99; proved: {version.proved()}" in output
    assert verdict(output) == (
        "Active with these. But tokenflow was not proved on SGLang 0.5.99: answers may be wrong."
    )
    assert run(*line[:-1])[0] == 1
    told = tmp_path / "server.yaml"
    told.write_text("tokenflow-unproved-sglang: true\n")
    for config in ([f"--config={told}"], ["--config", str(told)]):
        assert run(*line[:-1], *config)[0] == 0
    for text in ("tokenflow-unproved-sglang: false\n", "- 1\n", "{", "\xff"):
        told.write_text(text, encoding="latin-1")
        assert run(*line[:-1], "--config", str(told))[0] == 1
    assert run(*line[:-1], "--config")[0] == 1


def test_a_broken_seam(monkeypatch):
    gone = ledger()[7]
    monkeypatch.setattr(
        seam_source,
        "problem",
        lambda seam: f"{gone.target} is missing (gone)" if seam is gone else None,
    )
    code, output = run()
    assert code == 1
    assert f"1 of {len(ledger())} broken" in output
    assert verdict(output).startswith(f"Not active: {gone.target} is missing (gone).")
    assert gone.why in output  # its row is shown without --seams
    assert ledger()[0].target not in output


def test_sglang_that_fails_when_imported(monkeypatch):
    def undecided(seam):
        raise seam_source.UndecidedError

    def explode(seam):
        raise RuntimeError("no device")

    monkeypatch.setattr(seam_source, "problem", undecided)
    monkeypatch.setattr(seam_check, "problem", explode)
    code, output = run()
    assert code == 1
    assert "RuntimeError: no device" in verdict(output)


@pytest.mark.parametrize("value", ["other", "other, tokenflow_emu", " , "])
def test_allowlist_without_us(monkeypatch, value):
    monkeypatch.setenv("SGLANG_PLUGINS", value)
    code, output = run()
    assert code == 1
    assert verdict(output).startswith(f"Not active: SGLANG_PLUGINS={value} leaves tokenflow out")


@pytest.mark.parametrize("value", ["", "tokenflow", "other , tokenflow"])
def test_allowlist_that_keeps_us(monkeypatch, value):
    monkeypatch.setenv("SGLANG_PLUGINS", value)
    assert run()[0] == 0


def test_entry_point_is_not_registered(monkeypatch):
    install(monkeypatch, PLATFORM)
    code, output = run()
    assert code == 1
    assert "entry point tokenflow in the group sglang.srt.plugins" in verdict(output)


def test_an_installed_platform_is_selected(monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "some_device")
    code, output = run()
    assert code == 0
    assert "some_device, by SGLANG_PLATFORM" in output


def test_a_platform_that_is_not_installed(monkeypatch):
    monkeypatch.setenv("SGLANG_PLATFORM", "nonsense")
    code, output = run()
    assert code == 1
    assert "SGLANG_PLATFORM=nonsense names no installed platform" in verdict(output)
    assert "some_device" in verdict(output)


def test_a_platform_of_our_own_distribution_would_exclude_us(monkeypatch):
    own = point(PLATFORM_GROUP, "own", "own:activate", "tokenflow-sgl")
    install(monkeypatch, PLUGIN, PLATFORM, own)
    assert run()[0] == 0  # nothing is selected: nothing is skipped
    monkeypatch.setenv("SGLANG_PLATFORM", "some_device")
    code, output = run()
    assert code == 1
    assert "makes SGLang skip the distribution of tokenflow" in verdict(output)


def test_what_the_seams_say_meanwhile_is_not_shown(monkeypatch):
    def noisy(seam):
        import logging
        import warnings

        warnings.warn("third-party warning", stacklevel=1)
        logging.getLogger("third").error("third-party log line")
        print("third-party print", file=sys.stderr)

    monkeypatch.setattr(seam_source, "problem", noisy)
    code, output = run()
    assert code == 0
    assert "third-party" not in output


def test_looking_without_the_seams_imports_no_sglang():
    code = (
        "import sys; from tokenflow_sgl.cli.app import app; from tokenflow_sgl.cli import doctor; "
        "import tokenflow_sgl.engine.sglang.seam_check, tokenflow_sgl.engine.config; "
        "print([name for name in ('sglang', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
