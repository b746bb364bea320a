from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokenflow_sgl.lab.profiles import DeviceProfile, Launch, Link, PieceCosts, ProfileError


def test_link_by_hand() -> None:
    link = Link(bandwidth=25e9, latency=10e-6)
    assert link.seconds(0) == 10e-6
    assert link.seconds(25e9) == pytest.approx(1.00001)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "field"),
    [(0.0, 0.0, "bandwidth is 0.0"), (1.0, -1.0, "latency is -1.0"), (float("nan"), 0.0, "nan")],
)
def test_link_refuses(bandwidth: float, latency: float, field: str) -> None:
    with pytest.raises(ProfileError, match=field):
        Link(bandwidth, latency)


def test_decode_takes_the_sum_of_the_contexts(small: DeviceProfile) -> None:
    # 10 ms + 3 rows * 1 ms + 21 tokens * 0.1 ms
    assert small.decode_seconds(3, 21) == pytest.approx(0.0151)
    assert small.decode_seconds(0, 0) == 0.0


def test_prefill_takes_the_attention_work(small: DeviceProfile) -> None:
    # Two requests: 10 tokens after 5, 30 tokens after none: 10 * 10 + 30 * 15 = 550.
    # 20 ms + 40 * 2 ms + 550 * 0.5 ms
    assert small.prefill_seconds(40, 550.0) == pytest.approx(0.375)
    assert small.prefill_seconds(0, 0.0) == 0.0


def test_mixed_shares_what_is_fixed(small: DeviceProfile) -> None:
    # Prefill of 40 + 3 tokens with 550 work: 20 + 86 + 275 ms. Decode's context above one of 1
    # token a row, where the table begins: 21 * 0.1 - 3 * 0.1 ms.
    assert small.mixed_seconds(40, 550.0, 3, 21) == pytest.approx(0.381 + 0.0018)
    alone = small.prefill_seconds(40, 550.0) + small.decode_seconds(3, 21)
    assert small.mixed_seconds(40, 550.0, 3, 21) < alone


def test_mixed_of_one_kind_is_that_kind(small: DeviceProfile) -> None:
    assert small.mixed_seconds(0, 0.0, 3, 21) == small.decode_seconds(3, 21)
    assert small.mixed_seconds(40, 550.0, 0, 0) == small.prefill_seconds(40, 550.0)


def test_load_is_one_transfer(small: DeviceProfile) -> None:
    assert small.load_seconds(500) == pytest.approx(1e-3 + 500 * 1000 / 1e9)


@pytest.mark.parametrize("name", ["layers", "kv_bytes_per_token", "weight_bytes", "kv_pool_tokens"])
def test_refuses_sizes_below_one(small: DeviceProfile, name: str) -> None:
    with pytest.raises(ProfileError, match=f"{name} is 0; allowed is 1 or more"):
        replace(small, **{name: 0})


def test_refuses_an_empty_source(small: DeviceProfile) -> None:
    with pytest.raises(ProfileError, match="source is empty"):
        replace(small, source=" ")


def test_file_keeps_everything(small: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    odd = replace(
        small,
        source='a "quoted" µ',
        host_to_device=Link(1e9 / 3, 1e-6 / 7),
        launch=Launch(1 / 3, 1 / 7, 48),
        pieces=PieceCosts(1e-5 / 3, 1e-6 / 9, 1e-6 / 7, 1e10 / 3),
    )
    odd.save(path)
    again = DeviceProfile.load(path)
    assert again == odd
    assert again.decode_seconds(3, 21) == odd.decode_seconds(3, 21)


@pytest.mark.parametrize("name", ["launch", "pieces"])
def test_a_file_of_an_earlier_release_has_no_such_costs(
    small: DeviceProfile, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "p.json"
    small.save(path)
    content = json.loads(path.read_text())
    del content[name]
    path.write_text(json.dumps(content))
    assert DeviceProfile.load(path) == small


def _set(*keys: str | int, to: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return change


def _drop(name: str) -> Callable[[Any], None]:
    return lambda content: content.pop(name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_set("format", to="x"), "is not a profile"),
        (_drop("format"), "is not a profile"),
        (_set("version", to=2), "has version 2; this release reads version 1"),
        (_drop("version"), "has version None"),
        (_drop("layers"), "the profile lacks layers"),
        (_set("colour", to=1), "unknown fields colour"),
        (_set("device", to=3), "device is 3; expected is a string"),
        (_set("layers", to=2.0), "layers is 2.0; expected is a whole number"),
        (_set("layers", to=True), "layers is true; expected is a whole number"),
        (_set("layers", to=0), "layers is 0; allowed is 1 or more"),
        (_set("host_to_device", to=[]), "host_to_device is a list; expected is an object"),
        (_set("host_to_device", "bandwidth", to=-1.0), "bandwidth is -1.0"),
        (_set("host_to_device", "bandwidth", to="1"), 'bandwidth is "1"; expected is a number'),
        (
            _set("host_to_device", "latency", to=float("nan")),
            "latency is NaN; expected is a finite",
        ),
        (_set("host_to_device", "bandwidth", to=10**400), "expected is a finite number"),
        (_set("decode", "batch", to=4), "decode: batch is 4; expected is a list of numbers"),
        (_set("decode", "batch", 1, to=None), r"decode: batch\[1\] is null; expected is a number"),
        (_set("decode", "batch", 1, to=1.0), "decode: the first axis has 1.0 after 1.0"),
        (_set("prefill", "seconds", to=1.0), "seconds is 1.0; expected is a list of lists"),
        (_set("prefill", "seconds", 1, 0, to="x"), r'prefill: seconds\[1\]\[0\] is "x"'),
        (_set("prefill", "seconds", 1, 1, to=1e-9), "more work must not take less time"),
        (_set("launch", "prefill", to=-1), "launch: prefill is -1.0; allowed is 0 or more"),
        (_set("launch", "graph_rows", to=1.5), "graph_rows is 1.5; expected is a whole number"),
        (_set("pieces", to=3), "pieces is 3; expected is an object"),
        (_set("pieces", "call", to="x"), 'pieces: call is "x"; expected is a number'),
        (_set("pieces", "set_up", to=-1), "pieces: set_up is -1.0; allowed is 0 or more"),
        (_set("pieces", "colour", to=1), "pieces has unknown fields colour"),
    ],
)
def test_refuses_files(
    small: DeviceProfile, tmp_path: Path, change: Callable[[Any], None], sentence: str
) -> None:
    path = tmp_path / "p.json"
    small.save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError, match=sentence) as caught:
        DeviceProfile.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "is not a profile"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"format": "x", "format": "x"}', "'format' is there twice"),
    ],
)
def test_refuses_what_is_no_profile(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=sentence):
        DeviceProfile.load(path)


def test_refuses_bytes_and_absence(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        DeviceProfile.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="is not valid JSON"):
        DeviceProfile.load(path)


def test_copies_like_any_dataclass(small: DeviceProfile) -> None:
    assert copy.deepcopy(small) == small
