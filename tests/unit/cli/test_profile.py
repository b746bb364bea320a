from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tokenflow_sgl.cli.profile import profile_app
from tokenflow_sgl.lab.profiles import DEVICES, MODELS, DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pieces import ESTIMATED, HOPPER, NO_PIECE_COSTS

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(
        profile_app, [str(argument) for argument in arguments]
    )


def measurements(path: Path) -> Path:
    known = load_profile("rtx4090", "llama3-8b")
    lines = ["kind,batch,tokens,context,seconds"]
    for batch in (1, 16, 64):
        for context in (128, 1024, 4096):
            lines.append(
                f"decode,{batch},,{context},{known.decode_seconds(batch, batch * context)}"
            )
    for tokens in (64, 512, 2048):
        for prefix in (0, 2048, 8192):
            seconds = known.prefill_seconds(tokens, tokens * (prefix + tokens / 2))
            lines.append(f"prefill,1,{tokens},{prefix},{seconds}")
    for tokens in (100, 1000):
        lines.append(f"load,,{tokens},,{known.load_seconds(tokens)}")
        lines.append(f"store,,{tokens},,{2 * known.load_seconds(tokens)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_list_has_every_device_and_model() -> None:
    result = run("list")
    assert result.exit_code == 0
    for name in (*DEVICES, *MODELS):
        assert name in result.output
    assert "131072" in result.output
    assert "PCIe 4 x16" in result.output
    assert "aiconfigurator h200_sxm" in result.output


def test_list_fits_a_plain_terminal() -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(profile_app, ["list"])
    assert "…" not in result.output
    assert "rtx_pro_6000_server" in result.output


def test_show_prints_draws_and_saves(tmp_path: Path) -> None:
    picture, document = tmp_path / "p.png", tmp_path / "p.json"
    result = run("show", "rtx4090", "llama3-8b", "--plot", picture, "--save", document)
    assert result.exit_code == 0, result.output
    profile = load_profile("rtx4090", "llama3-8b")
    assert DeviceProfile.load(document) == profile
    assert picture.read_bytes().startswith(PNG)
    assert f"{profile.kv_pool_tokens} tokens on the device" in result.output
    assert "roofline from data-sheet figures" in result.output
    assert f"{1e3 * profile.decode_seconds(64, 64 * 4096):.2f}" in result.output
    assert f"{1e3 * profile.prefill_seconds(2048, 2048 * 1024):.2f}" in result.output


def test_show_estimates_pieces_only_when_asked(tmp_path: Path) -> None:
    document = tmp_path / "p.json"
    result = run("show", "rtx4090", "llama3-8b", "--estimate-pieces", "--save", document)
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.replace("│", " ").split())
    assert "6.0 us per call on the CPU, 0.0 us on the copy engine, 1.50 us per piece" in told, told
    plain = load_profile("rtx4090", "llama3-8b")
    assert plain.pieces == NO_PIECE_COSTS
    assert DeviceProfile.load(document) == replace(plain, pieces=ESTIMATED)
    assert run("show", "h200", "llama3-8b", "--estimate-pieces", "--save", document).exit_code == 0
    assert DeviceProfile.load(document).pieces == HOPPER


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "h20", "llama3-8b"), "h20"),
        (("show", "rtx4090", "gpt"), "gpt"),
        (("show", "rtx4090", "qwen3-32b"), "qwen3-32b does not fit on rtx4090"),
        (("show", "rtx4090", "llama3-8b", "--plot", "p.xyz"), "must end in .png"),
        (("show", "rtx4090", "llama3-8b", "--save", "/proc/p.json"), "No such file or directory"),
    ],
)
def test_show_refuses_with_a_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_picture_without_matplotlib_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name)
    )
    result = run("show", "rtx4090", "llama3-8b", "--plot", "p.png")
    assert result.exit_code == 2
    assert "A profile needs matplotlib: pip install 'matplotlib>=" in result.output


def test_fit_writes_a_profile_and_its_residuals(tmp_path: Path) -> None:
    source = measurements(tmp_path / "measured.csv")
    output, picture = tmp_path / "mine.json", tmp_path / "mine.png"
    result = run(
        "fit",
        source,
        "--device",
        "rtx4090",
        "--model",
        "llama3-8b",
        "-o",
        output,
        "--plot",
        picture,
    )
    assert result.exit_code == 0, result.output
    profile = DeviceProfile.load(output)
    assert profile.source == "fitted to measured.csv"
    assert profile.device_memory == DEVICES["rtx4090"].memory
    assert profile.host_to_device.bandwidth == pytest.approx(25e9, rel=1e-3)
    assert profile.device_to_host.bandwidth == pytest.approx(12.5e9, rel=1e-3)
    assert picture.read_bytes().startswith(PNG)
    rows = [line.split() for line in result.output.splitlines()]
    assert ["decode", "9", "grid", "0.0%", "0.0%"] in [row[:5] for row in rows]
    assert ["load", "2", "form", "0.0%", "0.0%"] in [row[:5] for row in rows]


def test_fit_of_an_unknown_device_asks_for_its_memory(tmp_path: Path) -> None:
    source, output = measurements(tmp_path / "measured.csv"), tmp_path / "mine.json"
    known = ("fit", source, "--device", "mine", "--model", "llama3-8b", "-o", output)
    result = run(*known)
    assert result.exit_code == 2
    assert "device is 'mine', which 'list' does not know: say its --memory-gib" in result.output
    assert not output.exists()
    result = run(*known, "--memory-gib", "40")
    assert result.exit_code == 0, result.output
    assert DeviceProfile.load(output).device_memory == 40 << 30


def test_fit_names_file_line_and_column(tmp_path: Path) -> None:
    source = tmp_path / "measured.csv"
    source.write_text("kind,batch,tokens,context,seconds\ndecode,1,,64,fast\n")
    result = run("fit", source, "--device", "h200", "--model", "llama3-8b", "-o", tmp_path / "p")
    assert result.exit_code == 2
    assert "measured.csv, line 2, column seconds: 'fast'" in result.output.replace("\n", "")
