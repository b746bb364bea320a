from __future__ import annotations

import random
from pathlib import Path

import pytest

from tokenflow_sgl.lab.profiles import DEVICES, MODELS, ProfileError, load_profile, roofline
from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile
from tokenflow_sgl.lab.profiles.fit import Residual, fit
from tokenflow_sgl.lab.profiles.measured import Measurement, read_measurements

LLAMA = MODELS["llama3-8b"]
KV = LLAMA.kv_bytes_per_token
HEADER = "kind,batch,tokens,context,seconds\n"
COPIES = "load,,1000,,0.003\nload,,9000,,0.02\nstore,,1000,,0.003\nstore,,9000,,0.02\n"


def line_form(noise: float, seed: int = 3) -> list[Measurement]:
    """Scattered measurements of a device with exactly the physical form."""
    source = random.Random(seed)
    rows: list[tuple[str, int, int, int, float]] = []
    for _ in range(200):
        batch, context = source.randint(1, 200), source.randint(50, 8000)
        rows.append(("decode", batch, 0, context, 5e-3 + 2e-5 * batch + 3e-8 * batch * context))
        requests, tokens = source.randint(1, 4), source.randint(20, 4000)
        prefix = source.randint(0, 8000)
        work = requests * tokens * (prefix + tokens / 2)
        rows.append(
            ("prefill", requests, tokens, prefix, 8e-3 + 2e-5 * requests * tokens + 2e-9 * work)
        )
        rows.append(("load", 0, tokens, 0, 1e-5 + tokens * KV / 24e9))
        rows.append(("store", 0, tokens, 0, 2e-5 + tokens * KV / 12e9))
    return [
        Measurement(
            i + 2, kind, batch, tokens, context, seconds * source.uniform(1 - noise, 1 + noise)
        )
        for i, (kind, batch, tokens, context, seconds) in enumerate(rows)
    ]


def fitted(measurements: list[Measurement]) -> tuple[DeviceProfile, dict[str, Residual]]:
    profile, residuals = fit(measurements, "mine", LLAMA, DEVICES["a6000"].memory, "a test")
    return profile, {item.kind: item for item in residuals}


def test_recovers_a_known_device_from_noisy_measurements() -> None:
    profile, residuals = fitted(line_form(noise=0.05))
    assert profile.host_to_device.bandwidth == pytest.approx(24e9, rel=0.02)
    assert profile.device_to_host.bandwidth == pytest.approx(12e9, rel=0.02)
    for batch, context in ((1, 100), (20, 1000), (150, 6000), (300, 9000)):
        truth = 5e-3 + 2e-5 * batch + 3e-8 * batch * context
        assert profile.decode_seconds(batch, batch * context) == pytest.approx(truth, rel=0.02)
    for tokens, prefix in ((64, 0), (1000, 4000), (4000, 0), (12000, 6000)):
        work = tokens * (prefix + tokens / 2)
        truth = 8e-3 + 2e-5 * tokens + 2e-9 * work
        assert profile.prefill_seconds(tokens, work) == pytest.approx(truth, rel=0.02)
    for residual in residuals.values():
        assert residual.method == "form" and residual.rows == 200
        assert 0.015 < residual.mean < 0.035  # half the noise, on average
        assert residual.worst < 0.08


def test_without_noise_the_residuals_vanish() -> None:
    _, residuals = fitted(line_form(noise=0.0))
    assert all(residual.worst < 1e-6 for residual in residuals.values())


def test_an_outlier_is_named_by_its_line() -> None:
    measurements = line_form(noise=0.0)
    bad = measurements[40]
    measurements[40] = Measurement(
        bad.line, bad.kind, bad.batch, bad.tokens, bad.context, 2 * bad.seconds
    )
    _, residuals = fitted(measurements)
    assert residuals[bad.kind].worst_line == bad.line
    assert residuals[bad.kind].worst == pytest.approx(0.5, abs=0.02)


def test_a_grid_is_repeated_where_no_form_could() -> None:
    """Two branches and a jump at 100 rows, as on real devices."""
    hardware = DEVICES["rtx4090"]

    def decode(batch: int, context: int) -> float:
        return roofline.decode_seconds(hardware, LLAMA, batch, context) * (
            1.2 if batch > 100 else 1
        )

    rows = [
        Measurement(0, "decode", batch, 0, context, decode(batch, context))
        for batch in (1, 16, 64, 100, 101, 160, 256)
        for context in (64, 512, 2048, 4096)
        for _ in range(3)
    ]
    rows += [
        Measurement(0, "prefill", 1, n, p, roofline.prefill_seconds(hardware, LLAMA, n, p + n / 2))
        for n in (16, 64, 110, 128, 512, 2048)
        for p in (0, 1000, 4000)
    ]
    rows += [row for row in line_form(0.0) if row.kind in ("load", "store")]
    profile, residuals = fitted(rows)
    assert residuals["decode"].method == residuals["prefill"].method == "grid"
    assert residuals["decode"].worst < 1e-9
    # Between grid points the form may overshoot a flat stretch, and monotony costs a little then.
    assert residuals["prefill"].worst < 2e-3
    assert profile.decode_seconds(130, 130 * 1000) == pytest.approx(decode(130, 1000), rel=0.05)
    truth = roofline.prefill_seconds(hardware, LLAMA, 300, 2000)
    assert profile.prefill_seconds(300, 300 * 2000) == pytest.approx(truth, rel=0.05)


def test_a_hole_in_the_grid_makes_it_a_form() -> None:
    rows = [row for row in line_form(0.0) if row.kind != "decode"]
    grid = [
        Measurement(0, "decode", batch, 0, context, 5e-3 + 3e-8 * batch * context)
        for batch in (1, 16, 64)
        for context in (64, 512, 2048)
    ]
    assert fitted(rows + grid)[1]["decode"].method == "grid"
    assert fitted(rows + grid[:-1])[1]["decode"].method == "form"


def test_a_fitted_profile_survives_its_file(tmp_path: Path) -> None:
    profile, _ = fitted(line_form(noise=0.05))
    profile.save(tmp_path / "p.json")
    assert DeviceProfile.load(tmp_path / "p.json") == profile


def test_a_profile_measured_through_its_own_times_is_found_again() -> None:
    known = load_profile("rtx4090", "llama3-8b")
    rows = [
        Measurement(0, "decode", batch, 0, context, known.decode_seconds(batch, batch * context))
        for batch in (1, 8, 32, 64, 112, 128, 192)
        for context in (128, 1024, 4096)
    ]
    rows += [
        Measurement(0, "prefill", 1, n, p, known.prefill_seconds(n, n * (p + n / 2)))
        for n in (32, 96, 112, 256, 2048)
        for p in (64, 2048, 8192)
    ]
    rows += [
        Measurement(0, kind, 0, n, 0, known.load_seconds(n))
        for kind in ("load", "store")
        for n in (16, 4096)
    ]
    found, _ = fitted(rows)
    assert found.load_seconds(1000) == pytest.approx(known.load_seconds(1000), rel=1e-6)
    for batch, context in ((4, 500), (48, 2000), (150, 3000)):
        expected = known.decode_seconds(batch, batch * context)
        assert found.decode_seconds(batch, batch * context) == pytest.approx(expected, rel=0.03)
    for tokens, attended in ((64, 1000), (1000, 3000)):
        expected = known.prefill_seconds(tokens, tokens * attended)
        assert found.prefill_seconds(tokens, tokens * attended) == pytest.approx(expected, rel=0.03)


def test_reads_columns_in_any_order_and_quoted(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(
        'seconds,kind,context,tokens,batch\r\n1e-2,decode,100,,4\r\n"0.5",prefill,0,8,2\r\n'
    )
    assert read_measurements(path) == [
        Measurement(2, "decode", 4, 0, 100, 0.01),
        Measurement(3, "prefill", 2, 8, 0, 0.5),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: the columns are none; they must be kind, batch"),
        ("kind,batch,tokens,seconds\n", "line 1: the columns are kind, batch, tokens, seconds;"),
        (HEADER + "decode,1,,5\n", "line 2: 4 cells for 5 columns"),
        (HEADER + "\n\ndecoding,1,,5,1\n", "line 4, column kind: 'decoding'; allowed are decode"),
        (HEADER + "decode,x,,5,1\n", "line 2, column batch: 'x'; allowed is a whole number from 1"),
        (HEADER + "decode,0,,5,1\n", "line 2, column batch: '0'"),
        (HEADER + "decode,1.5,,5,1\n", r"line 2, column batch: '1\.5'"),
        (HEADER + "decode,-1,,5,1\n", "line 2, column batch: '-1'"),
        (HEADER + "decode,٣,,5,1\n", "line 2, column batch: '٣'"),
        (HEADER + "decode,1,7,5,1\n", "line 2, column tokens: '7'; a row of kind decode leaves"),
        (HEADER + "prefill,1,,5,1\n", "line 2, column tokens: ''; allowed is a whole number"),
        (
            HEADER + "prefill,1,7,,1\n",
            "line 2, column context: ''; allowed is a whole number from 0",
        ),
        (HEADER + "load,1,7,,1\n", "line 2, column batch: '1'; a row of kind load leaves it empty"),
        (HEADER + "load,,7,,0\n", "line 2, column seconds: '0'; allowed is a number of seconds"),
        (HEADER + "load,,7,,nan\n", "line 2, column seconds: 'nan'"),
        (HEADER + "load,,7,,\n", "line 2, column seconds: ''"),
        (HEADER + 'load,,7,,"1\n', "line 2: unexpected end of data"),
    ],
)
def test_refuses_files(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=sentence) as caught:
        read_measurements(path)
    assert str(caught.value).startswith(str(path))


def test_refuses_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(b"kind,\xff\n")
    with pytest.raises(ProfileError, match="is not UTF-8"):
        read_measurements(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        read_measurements(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    ("dropped", "sentence"),
    [
        ("decode", "decode: the measurements have 0 different batch sizes; needed are 2"),
        ("prefill", "prefill: the measurements have 0 different token counts"),
        ("load", "load: the measurements have 0 different token counts"),
        ("store", "store: the measurements have 0 different token counts"),
    ],
)
def test_every_kind_is_needed(dropped: str, sentence: str) -> None:
    rows = [row for row in line_form(0.0) if row.kind != dropped]
    with pytest.raises(ProfileError, match=sentence):
        fitted(rows)


def test_copies_must_depend_on_their_size() -> None:
    rows = [row for row in line_form(0.0) if row.kind != "load"]
    rows += [Measurement(0, "load", 0, 10, 0, 0.5), Measurement(0, "load", 0, 1000, 0, 0.1)]
    with pytest.raises(ProfileError, match="load: the copies do not get slower with their size"):
        fitted(rows)


def test_a_model_must_fit() -> None:
    with pytest.raises(ProfileError, match="weights take 65"):
        fit(line_form(0.0), "mine", MODELS["qwen3-32b"], DEVICES["a6000"].memory, "a test")
