"""The emulated device's accounts: durations, late steps, and a CPU that keeps it waiting."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenflow_sgl.lab.profiles import DeviceProfile, Launch, PieceCosts, Pieces
from tokenflow_sgl_emulator.timed import device as device_module
from tokenflow_sgl_emulator.timed import dilation, timed_streams
from tokenflow_sgl_emulator.timed.device import CopyCount, EmulatedDevice
from tokenflow_sgl_emulator.timed.step_work import StepWork, work_of

MakeProfile = Callable[..., DeviceProfile]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(time=50.0)
    for module in (device_module, timed_streams):
        monkeypatch.setattr(module, "now", lambda: fake.time)
    monkeypatch.setattr(timed_streams, "_default", timed_streams.Stream())
    return fake


def step(device: EmulatedDevice, clock: SimpleNamespace, seconds: float, real: float) -> None:
    stream = device.begin_step()
    device.compute(stream, seconds)
    clock.time += real
    device.end_step(stream)


def test_a_step_in_time_is_not_late(make_profile: MakeProfile, clock: SimpleNamespace) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.019)
    assert (device.count.steps, device.count.late_steps) == (1, 0)
    assert timed_streams.current_stream().done_at == pytest.approx(50.020)
    assert device.count.busy_seconds == pytest.approx(0.010)


def test_a_step_whose_real_work_takes_longer_is_late(
    make_profile: MakeProfile, clock: SimpleNamespace
) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.021)
    assert device.count.late_steps == 1


def test_a_late_submission_starves_the_device(
    make_profile: MakeProfile, clock: SimpleNamespace
) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.001)  # ends at 50.020
    clock.time = 50.030
    step(device, clock, seconds=0.010, real=0.001)
    assert device.count.starved_seconds == pytest.approx(0.005)  # 10 ms of wall clock at 2x


@pytest.mark.parametrize(("submitted", "starved"), [(50.015, 0.0), (50.030, 0.010)])
def test_a_step_that_waits_for_a_copy_does_not_starve_the_device(
    make_profile: MakeProfile, clock: SimpleNamespace, submitted: float, starved: float
) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.001)  # ends at 50.020
    clock.time = submitted
    copied = timed_streams.Event()
    copied.done_at = 51.0
    timed_streams.current_stream().wait_event(copied)
    step(device, clock, seconds=0.010, real=0.001)
    assert timed_streams.current_stream().done_at == pytest.approx(51.020)
    assert device.count.starved_seconds == pytest.approx(starved / 2.0)
    assert device.slower[16.0].starved_seconds == 0.0


def test_it_counts_what_a_larger_dilation_would_mend(
    make_profile: MakeProfile, clock: SimpleNamespace
) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.001)  # ends at 50.020
    clock.time = 50.030  # so the CPU needed 30 ms of the wall clock for the next one
    step(device, clock, seconds=0.010, real=0.050)  # late: 50 ms for 20
    starved = {factor: each.starved_seconds for factor, each in device.slower.items()}
    assert starved[1.25] == pytest.approx((0.030 - 0.025) / 2.5)
    assert starved[1.5] == pytest.approx(0.0) and starved[16.0] == 0.0
    late = {factor: each.late_steps for factor, each in device.slower.items()}
    assert (late[1.25], late[2.0], late[3.0]) == (1, 1, 0)
    assert device.report()["at_dilation"]["6"] == {"late_steps": 0, "starved_seconds": 0.0}


def test_waiting_for_requests_is_not_starving(
    make_profile: MakeProfile, clock: SimpleNamespace
) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.001)
    device.idle()
    clock.time = 60.0
    step(device, clock, seconds=0.010, real=0.001)
    assert device.count.starved_seconds == 0.0


def test_copies_take_their_share_of_layers_over_the_link(
    make_profile: MakeProfile, clock: SimpleNamespace
) -> None:
    device = EmulatedDevice(make_profile(), dilation=3.0)
    device.copy(200, 1, device.profile.host_to_device)  # 50,000 bytes and 1 ms
    assert timed_streams.current_stream().done_at == pytest.approx(50.0 + 3 * (0.001 + 0.05))
    device.copy(200, 4, device.profile.device_to_host)  # 200,000 bytes and 2 ms
    assert timed_streams.current_stream().done_at == pytest.approx(50.153 + 3 * (0.002 + 0.4))


def test_the_report_is_plain_data(make_profile: MakeProfile, clock: SimpleNamespace) -> None:
    device = EmulatedDevice(make_profile(), dilation=2.0)
    step(device, clock, seconds=0.010, real=0.1)
    report = device.report()
    assert report["device"] == "toy" and report["time_dilation"] == 2.0
    assert (report["steps"], report["late_steps"]) == (1, 1)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), 1e6])
def test_absurd_dilations_are_refused(make_profile: MakeProfile, factor: float) -> None:
    with pytest.raises(ValueError, match=r"allowed is a factor from 0\.01 to 1000"):
        EmulatedDevice(make_profile(), factor)


def batch(mode: str, **fields: Any) -> Any:
    forward_mode = SimpleNamespace(is_extend=lambda: mode != "decode")
    return SimpleNamespace(forward_mode=forward_mode, **fields)


def test_work_of_a_decode_step() -> None:
    work = work_of(batch("decode", seq_lens_cpu=torch.tensor([5, 7])))
    assert work == StepWork(tokens=0, attention=0.0, batch=2, context=12, decode=True)


def test_work_of_a_prefill_step() -> None:
    # 10 tokens after 20, and 2 after 6: 10 * 25 + 2 * 7 attended keys.
    lengths = {"extend_seq_lens_cpu": [10, 2], "extend_prefix_lens_cpu": [20, 6]}
    assert work_of(batch("extend", **lengths)) == StepWork(12, 264.0, 0, 0)


def test_a_row_of_one_token_decodes_whatever_sglang_calls_it() -> None:
    # SGLang runs a mixed batch as a prefill batch: nothing else tells its decoding rows.
    lengths = {"extend_seq_lens_cpu": [10, 1], "extend_prefix_lens_cpu": [20, 6]}
    assert work_of(batch("extend", **lengths)) == StepWork(10, 250.0, 1, 7)
    resumed = {"extend_seq_lens_cpu": [1, 1], "extend_prefix_lens_cpu": [20, 6]}
    assert work_of(batch("extend", **resumed)) == StepWork(0, 0.0, 2, 28)


def test_steps_take_the_time_of_their_kind(make_profile: MakeProfile) -> None:
    profile = make_profile(seconds=0.02)
    assert StepWork(0, 0.0, 3, 300, decode=True).seconds(profile) == profile.decode_seconds(3, 300)
    assert StepWork(50, 99.0, 0, 0).seconds(profile) == profile.prefill_seconds(50, 99.0)
    assert StepWork(50, 99.0, 3, 300).seconds(profile) == profile.mixed_seconds(50, 99.0, 3, 300)


def test_a_step_that_only_resumes_streams_is_launched_as_a_prefill(
    make_profile: MakeProfile,
) -> None:
    profile = replace(make_profile(seconds=0.02), launch=Launch(prefill=0.05))
    assert StepWork(0, 0.0, 3, 300).seconds(profile) == 0.05
    assert StepWork(0, 0.0, 3, 300, decode=True).seconds(profile) == pytest.approx(0.02)


def test_a_profile_survives_the_environment(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_profile().save(tmp_path / "toy.json")
    monkeypatch.setenv(device_module.PROFILE_VARIABLE, str(tmp_path / "toy.json"))
    monkeypatch.setenv(device_module.DILATION_VARIABLE, "2.5")
    device_module.the_device.cache_clear()
    device = device_module.the_device()
    device_module.the_device.cache_clear()
    assert device.profile == make_profile() and device.dilation == 2.5


def test_a_dilation_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device_module.DILATION_VARIABLE, "fast")
    with pytest.raises(ValueError, match="TOKENFLOW_EMU_TIME_DILATION is 'fast'"):
        device_module.dilation()


def test_slow_devices_run_in_real_time(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dilation, "machine_slowness", lambda: 1.0)
    assert dilation.choose_dilation(make_profile(seconds=0.1), 4000, 8) == 1.0


def test_fast_devices_are_slowed_down(
    make_profile: MakeProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dilation, "machine_slowness", lambda: 1.0)
    # The pool allows 7 rows of 512 tokens: (2.5 + 0.7) ms * 1.3 of real work for a 1 ms step.
    assert dilation.choose_dilation(make_profile(seconds=0.001), 4000, 2048) == 4.25
    monkeypatch.setattr(dilation, "machine_slowness", lambda: 2.0)
    assert dilation.choose_dilation(make_profile(seconds=0.001), 4000, 2048) == 8.5


def test_the_machine_is_measured() -> None:
    assert dilation.machine_slowness() > 0.0


def test_copies_are_counted_by_their_runs() -> None:
    count = CopyCount()
    one = count.add(torch.tensor([4, 5, 6, 7]), torch.tensor([10, 11, 12, 13]), large=4)
    count.issue(Pieces(calls=3, pieces=8))
    assert one == 1
    assert asdict(count) == {
        "transfers": 1,
        "tokens": 4,
        "host_runs": 1,
        "device_runs": 1,
        "runs": 1,
        "large_tokens": 4,
        "calls": 3,
        "pieces": 8,
    }
    # Runs of 1, 1 and 2 tokens; only the last one is large.
    assert count.add(torch.tensor([20, 21, 2, 3]), torch.tensor([50, 7, 8, 9]), large=2) == 3
    assert (count.transfers, count.tokens, count.large_tokens) == (2, 8, 4 + 2)
    assert (count.host_runs, count.device_runs, count.runs) == (1 + 2, 1 + 2, 1 + 3)


def test_a_copy_takes_what_its_pieces_cost(
    make_profile: MakeProfile, clock: SimpleNamespace
) -> None:
    profile = replace(make_profile(), pieces=PieceCosts(call=0.01, set_up=0.001))
    device = EmulatedDevice(profile, dilation=1.0)
    link = profile.host_to_device
    # One layer of four: 50,000 bytes take 50 ms; 30 pieces take 30 ms more, 30 calls 300 ms.
    device.copy(200, 1, link, Pieces(calls=1, pieces=30))
    assert timed_streams.current_stream().done_at == pytest.approx(50.0 + 0.001 + 0.08)
    device.copy(200, 1, link, Pieces(calls=30, pieces=30))
    assert timed_streams.current_stream().done_at == pytest.approx(50.081 + 0.001 + 0.3)


def test_a_large_run_fills_the_link_in_each_layer(make_profile: MakeProfile) -> None:
    # 1,000 bytes per token in 8 buffers: 125 bytes of a token lie together.
    device = EmulatedDevice(make_profile(layers=4), dilation=1.0)
    assert device.large == 320_000 / 125


@pytest.mark.parametrize(
    ("backend", "layout", "loaded", "stored"),
    [
        ("kernel", "page_first", Pieces(), Pieces(4, 4)),
        ("kernel", "layer_first", Pieces(), Pieces()),
        ("direct", "page_first_direct", Pieces(4, 16), Pieces(1, 16)),
        # Two pages that do not follow each other.
        ("direct", "layer_first", Pieces(16, 16), Pieces(16, 16)),
    ],
)
def test_copies_are_issued_as_sglang_does(
    backend: str,
    layout: str,
    loaded: Pieces,
    stored: Pieces,
    make_profile: MakeProfile,
    clock: SimpleNamespace,
) -> None:
    device = EmulatedDevice(make_profile(layers=4), dilation=1.0)
    slots = torch.tensor([0, 1, 6, 7]), torch.tensor([4, 5, 2, 3])
    for layer in range(4):
        device.load_layer(slots, layer, 2, backend, layout)
    device.store(slots, 2, backend, layout)
    for count, issued in ((device.loaded, loaded), (device.stored, stored)):
        assert (count.transfers, count.tokens, count.runs) == (1, 4, 2)
        assert (count.calls, count.pieces) == (issued.calls, issued.pieces)


def test_only_the_emulated_model_takes_time(make_profile: MakeProfile) -> None:
    device = EmulatedDevice(make_profile(layers=4), dilation=1.0)
    made = SimpleNamespace(device_=device, config=SimpleNamespace(num_hidden_layers=4))
    device.check_model(made)
    with pytest.raises(RuntimeError, match="the model is Linear, whose steps take no time"):
        device.check_model(torch.nn.Linear(1, 1))
    made.config.num_hidden_layers = 5
    with pytest.raises(RuntimeError, match="has 5 layers, and the profile is of 4"):
        device.check_model(made)
