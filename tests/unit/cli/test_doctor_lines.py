"""``tokenflow doctor --lines FILE``: launches judged without their machine, GPU or model."""

from __future__ import annotations

import os
import subprocess

import launch_lines
import pytest
from typer.testing import CliRunner

from tokenflow_sgl.cli.app import app
from tokenflow_sgl.cli.doctor_lines import LaunchLine, read_lines
from tokenflow_sgl.errors import InputError

SCRIPT = "from tokenflow_sgl.cli import main; main()"


def test_lines_are_read_as_a_shell_reads_them(monkeypatch) -> None:
    monkeypatch.setenv("RANKS", "8")
    text = "\n".join(
        [
            "# a comment",
            "",
            "HF_HOME=/x python3 -m sglang.launch_server --model-path 'a b' \\",
            "  --tp-size $RANKS  # eight of them",
            "sglang serve --model-path m --tp-size $NOWHERE_SET",
        ]
    )
    assert read_lines(text) == [
        LaunchLine(3, ("--model-path", "a b", "--tp-size", "8")),
        LaunchLine(5, ("--model-path", "m", "--tp-size", "$NOWHERE_SET")),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it has no launches"),
        ("# nothing\n\n", "it has no launches"),
        ("--model-path m\n\nserve 'm\n", "line 3 is no line of a shell: No closing quotation"),
        ("python3 -m sglang.launch_server", "line 1 has no options"),
    ],
)
def test_a_file_that_has_no_launches_is_refused(text, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        read_lines(text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--lines", "file", "--live", "http://127.0.0.1:9"], "--lines reads launches from a file"),
        (["--lines", "file", "--", "--tp-size", "2"], "--lines reads launches from a file"),
        (["--elsewhere"], "--elsewhere judges launch options"),
        (["--lines", "nowhere"], "does not exist"),
        (["--lines", "empty"], "empty: it has no launches"),
        (["--elsewhere", "--lines", "empty"], "empty: it has no launches"),
        (["--lines", "binary"], "binary: "),
    ],
)
def test_what_does_not_go_together_is_a_mistake_of_usage(
    words, sentence, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("--model-path m\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    done = CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.replace("│", " ").split())


@pytest.fixture
def doctor(warm, tmp_path):
    """Runs the command on the emulator's platform: exit code and lines."""
    script = tmp_path / "doctor.py"
    script.write_text(SCRIPT)

    def run(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [*warm, str(script), "doctor", *words],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "SGLANG_PLATFORM": "tokenflow_emu", "COLUMNS": "400"},
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stdout
        return done.returncode, [" ".join(line.split()) for line in done.stdout.splitlines()]

    return run


MODEL = "--model-path /nowhere/at/all"


@pytest.mark.slow
@pytest.mark.engine
def test_each_launch_gets_its_verdict(doctor, models, tmp_path) -> None:
    file = tmp_path / "launches"
    fine = f"{MODEL} --tp-size 64 --device cuda\n--model-path {models / 'qwen3'}\n"
    file.write_text(
        fine
        + f"{MODEL} --pp-size 2 --disable-radix-cache\n"
        + f"{MODEL} --tokenflow-eta 99\n"
        + f"{MODEL} --is-embedding\n"
        + f"{MODEL} --disaggregation-mode prefill --pp-size 2\n"
        + f"{MODEL} --no-such-option\n"
    )
    code, said = doctor("--lines", str(file))
    assert code == 1
    assert said[1] == "1 accepted the model /nowhere/at/all was not looked at"
    assert said[2] == "2 accepted"
    assert said[3].startswith("3 refused --scheduler tokenflow does not work with --pp-size 2: ")
    assert said[4].startswith("--scheduler tokenflow does not work with --disable-radix-cache")
    assert said[5] == "4 refused eta is 99.0; allowed is 0.1 to 10."
    assert said[6].startswith("5 refused --scheduler tokenflow serves generation models; this is")
    assert said[7].startswith("6 accepted the scheduler stays off: a prefill server hands")
    assert said[8].startswith("7 not taken SGLang refuses these options: unrecognized arguments")
    assert "--pp-size 1 0" in said
    assert "embedding model 1 1" in said
    assert said[-1] == (
        "7 launches: 3 accepted (1 with a model that was not looked at, 1 with the scheduler off), "
        "3 refused by tokenflow, 1 not taken by SGLang's parser."
    )
    file.write_text(fine)
    assert doctor("--lines", str(file))[0] == 0


@pytest.mark.slow
@pytest.mark.engine
def test_one_launch_is_judged_for_another_machine(doctor) -> None:
    options = ("--model-path", "/nowhere/at/all", "--device", "cuda")
    code, said = doctor("--elsewhere", "--", *options)
    assert code == 0, said
    assert said[-1].startswith("Active with --scheduler tokenflow. But what depends on the model")
    code, said = doctor("--elsewhere", "--", *options, "--pp-size", "2")
    assert code == 1
    assert said[-1].startswith("Not active: tokenflow refuses: --scheduler tokenflow does not work")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(not launch_lines.FILE.exists(), reason="the public launch lines are not here")
def test_public_launch_lines_are_judged(doctor, tmp_path) -> None:
    """By their options none is refused: what depends on the model is not known elsewhere."""
    file = tmp_path / "launches"
    file.write_text("\n".join(launch_lines.public_lines(without=(launch_lines.BENCHMARK,))))
    code, said = doctor("--lines", str(file))
    assert code == 0, said
    assert said[-1].startswith("165 launches: 165 accepted ")
    assert said[-1].endswith(" 0 not taken by SGLang's parser.")
