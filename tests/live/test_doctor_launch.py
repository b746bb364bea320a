"""``tokenflow doctor -- OPTIONS``: what a launch would refuse, asked of SGLang itself."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl.engine.unsupported_front_ends import OFF_IN_RUST

pytestmark = pytest.mark.engine

COMMAND = "from tokenflow_sgl.cli import main; main()"
"""The command, also as a script of `warm`."""


def verdict(output: str) -> str:
    return output.strip().splitlines()[-1]


@pytest.fixture
def doctor(warm, models, tmp_path):
    """Runs the command on the emulator's platform: exit code and all that it prints."""
    script = tmp_path / "doctor.py"
    script.write_text(COMMAND)

    def run(*options: str) -> tuple[int, str]:
        options = tuple(each.replace("MODEL", str(models / "qwen3")) for each in options)
        done = subprocess.run(
            [*warm, str(script), "doctor", *(("--", *options) if options else ())],
            capture_output=True,  # a fork prints both to the first
            text=True,
            timeout=300,
            env={**os.environ, "SGLANG_PLATFORM": "tokenflow_emu", "COLUMNS": "300"},
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stdout
        return done.returncode, done.stdout

    return run


OURS = ("--model-path", "MODEL", "--scheduler", "tokenflow")


def test_a_platform_that_is_there_is_active(doctor) -> None:
    code, output = doctor()
    assert code == 0, output
    assert "device                  cpu" in output
    assert verdict(output) == "Active with --scheduler tokenflow."


def test_a_launch_that_would_start_is_active(doctor) -> None:
    code, output = doctor(*OURS, "--tokenflow-eta", "1.1", "--max-total-tokens", "2000")
    assert code == 0, output
    assert "its configuration was read, its weights were not" in output
    assert verdict(output) == "Active with --scheduler tokenflow."


@pytest.mark.skipif(not at_least("0.5.23"), reason="refused there")
def test_what_is_off_behind_the_front_end_in_rust_is_said(doctor, monkeypatch) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    code, output = doctor(*OURS)
    assert code == 0, output
    assert f"front end               SGLang's in Rust: {OFF_IN_RUST[:60]}" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        # Ours.
        (("--tokenflow-policy", "none.such:Policy"), "tokenflow refuses: "),
        (("--no-tokenflow-park",), "--no-tokenflow-park has moved: write park = false below [pol"),
        (("--tokenflow-tuning", "none.toml"), "tokenflow refuses: tuning file none.toml: No such"),
        (
            ("--smg-grpc-mode", "--tokenflow-deposit"),
            "tokenflow refuses: --tokenflow-deposit does not work with --smg-grpc-mode: ",
        ),
        # SGLang's own: its parser's, and those of options that do not go together.
        (("--tp-size", "many"), "SGLang refuses these options: argument --tp-size"),
        (("--served-model-name", "a:b"), "SGLang refuses these options: AssertionError: serv"),
        (("--page-size", "64", "--chunked-prefill-size", "100"), "chunked_prefill_size must be"),
        (("--device", "cuda"), "--device cuda is not here; SGLang finds cpu"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_what_a_launch_would_refuse_is_said(doctor, options, reason) -> None:
    """Others are in test_doctor_lines.py, which asks of many launches at once."""
    code, output = doctor(*OURS, *options)
    assert code == 1, output
    assert verdict(output).startswith("Not active: ")
    assert reason in verdict(output)
    assert "Active with" not in output


def test_a_launch_without_the_scheduler_is_not_called_active(doctor) -> None:
    code, output = doctor("--model-path", "MODEL")
    assert code == 1
    assert verdict(output) == (
        "Not active: these options start SGLang's own scheduler. Next: add --scheduler tokenflow."
    )


STORED = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file")


@pytest.mark.parametrize(
    ("options", "found", "active"),
    [
        (
            ("--tokenflow-restore", "auto", *STORED),
            "auto: the head of a prefix in the storage (file) is computed while its tail is",
            "Active with --tokenflow-restore auto, under SGLang's own scheduler.",
        ),
        (
            ("--scheduler", "tokenflow", *STORED),
            "off: all of a prefix in the storage (file) is fetched before the prompt starts",
            "Active with --scheduler tokenflow.",
        ),
    ],
    ids=("on", "off"),
)
def test_what_becomes_of_stored_prefixes_is_said(doctor, options, found, active) -> None:
    code, output = doctor("--model-path", "MODEL", *options)
    assert code == 0, output
    assert f"restoration             {found}" in output
    assert verdict(output) == active


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "there is none; add --enable-hierarchical-cache --hicache-storage-backend"),
        ((*STORED, "--chunked-prefill-size", "-1"), "does not work without chunked prefill"),
    ],
    ids=("no storage", "no chunks"),
)
def test_why_prefixes_would_not_be_restored_is_said(doctor, options, reason) -> None:
    code, output = doctor("--model-path", "MODEL", "--tokenflow-restore", "auto", *options)
    assert code == 1, output
    assert reason in verdict(output)


def test_a_launch_without_a_model_is_refused_as_sglang_does(doctor) -> None:
    code, output = doctor("--scheduler", "tokenflow")
    assert code == 1
    assert "the following arguments are required: --model-path" in verdict(output)


@pytest.mark.slow
def test_a_model_that_is_elsewhere_is_not_downloaded(doctor) -> None:
    code, output = doctor("--scheduler", "tokenflow", "--model-path", "nobody/nothing")
    assert code == 0, output
    assert "nobody/nothing: not on this machine" in output
    assert verdict(output).endswith("But what depends on the model was not checked.")
    code, output = doctor("--scheduler", "tokenflow", "--model-path", "/nowhere/at/all")
    assert code == 1
    assert "--model-path /nowhere/at/all does not exist" in verdict(output)


@pytest.mark.slow
def test_without_an_accelerator_nothing_is_active() -> None:
    """This machine as it is, with SGLang imported and silent; standard error says what goes on."""
    unset = ("SGLANG_PLATFORM", "SGLANG_USE_CPU_ENGINE")
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "doctor"],
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name not in unset},
    )
    try:
        import torch

        accelerated = torch.cuda.is_available()
    except ImportError:
        accelerated = False
    assert done.stderr == "Reading SGLang ...\nTrying the launch ...\n"
    if accelerated:
        assert verdict(done.stdout) == "Active with --scheduler tokenflow."
        return
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Active with" not in done.stdout
    assert "Not active: SGLang finds no device here: RuntimeError: No accelerator (CUDA, XPU" in (
        " ".join(done.stdout.split())
    )
    assert "SGLANG_PLATFORM" in verdict(done.stdout)


def test_a_terminal_sees_that_something_goes_on(warm, tmp_path) -> None:
    script = tmp_path / "doctor.py"
    script.write_text(COMMAND)
    leader, terminal = pty.openpty()
    process = subprocess.Popen(
        [*warm, str(script), "doctor"],
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "SGLANG_PLATFORM": "tokenflow_emu", "TERM": "xterm"},
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            seen += os.read(leader, 4096)
        except OSError:
            break
    os.close(leader)
    assert process.wait(60) == 0
    text = seen.decode(errors="replace")
    assert "Reading SGLang" in text and "Trying the launch" in text
    assert "Active with --scheduler tokenflow." in text


def test_live_takes_no_launch_options() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "doctor", "--live", "http://127.0.0.1:9", "--", "--x"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert done.stderr == "--live examines a running server: leave out the launch options.\n"


def test_a_prefill_server_has_sglangs_own_scheduler(doctor) -> None:
    code, output = doctor(
        *("--model-path", "MODEL", "--scheduler", "tokenflow"),
        *("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "mooncake"),
    )
    assert code == 0, output
    assert verdict(output) == (
        "Active with SGLang's own scheduler: a prefill server hands each stream over at its first "
        "token."
    )
