"""What the emulated device changes in SGLang's waiting."""

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl_emulator.emulator_seam import is_older

if is_older():
    pytest.skip("that SGLang has no timed device", allow_module_level=True)

from tokenflow_sgl_emulator.timed import hooks, prefetch_wait
from tokenflow_sgl_emulator.timed.clock import VirtualClock
from tokenflow_sgl_emulator.timed.timed_streams import Stream, StreamContext
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, VirtualArrivals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    made = VirtualClock()
    monkeypatch.setattr(hooks, "the_clock", lambda: made)
    monkeypatch.setattr(prefetch_wait, "now", made.now)
    return made


@pytest.mark.parametrize(("overlap", "waited"), [(False, 3.0), (True, 0.0)])
def test_without_overlap_a_result_is_waited_for(
    clock: VirtualClock, overlap: bool, waited: float
) -> None:
    """SGLang makes the synchronising of its schedule stream do nothing on a CPU."""
    stream: Any = Stream()
    stream.synchronize = lambda: None
    stream.done_at = 3.0
    with StreamContext(stream):
        hooks.wait_for_result(SimpleNamespace(enable_overlap=overlap))
    assert clock.now() == waited


@pytest.mark.parametrize("dilation", [1.0, 4.0])
def test_a_wait_for_pages_is_timed_by_the_device(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, dilation: float
) -> None:
    monkeypatch.setattr(prefetch_wait, "dilation", lambda: dilation)
    tree: Any = SimpleNamespace(_storage_prefetch_wait={})
    operation = SimpleNamespace(handle="request")

    def start(tree: Any, operation: Any) -> None:  # as SGLang's
        if operation.handle not in tree._storage_prefetch_wait:
            timer = prefetch_wait.PollTimer(started_at=-1e9)
            tree._storage_prefetch_wait[operation.handle] = SimpleNamespace(timer=timer)

    clock.wait_until(8.0)
    prefetch_wait.start_prefetch_wait(start, tree, operation)
    timer = tree._storage_prefetch_wait["request"].timer
    assert timer.running and timer.elapsed() == 0.0
    clock.wait_until(16.0)
    prefetch_wait.start_prefetch_wait(start, tree, operation)
    assert timer is tree._storage_prefetch_wait["request"].timer
    assert timer.elapsed() == 8.0 / dilation
    assert timer.observe(ready=False) == 0.0 and timer.observe(ready=True) == 8.0 / dilation
    assert not timer.running and timer.elapsed() == 0.0
    assert timer.observe(ready=False) == 0.0 and timer.running


def test_where_sglang_sets_no_limit_there_is_no_timer(clock: VirtualClock) -> None:
    tree: Any = SimpleNamespace(_storage_prefetch_wait={})
    prefetch_wait.start_prefetch_wait(lambda *_: None, tree, SimpleNamespace(handle="request"))
    assert tree._storage_prefetch_wait == {}


def test_the_next_trace_begins_when_nothing_is_left_to_do(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not earlier, and then before SGLang's idle work, which sleeps until a message comes."""
    monkeypatch.setattr(hooks, "the_device", lambda: SimpleNamespace(idle=lambda: None))
    arrivals = VirtualArrivals(clock)
    monkeypatch.setattr(hooks, "_arrivals", lambda: arrivals)
    idle = False
    scheduler = SimpleNamespace(is_fully_idle=lambda: idle)
    slept: list[Any] = []

    def message(at_s: float) -> Any:
        custom = {ARRIVAL_KEY: {"at_s": at_s, "index": 0, "of": 1}}
        return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=custom))

    first, second = message(0.0), message(2.0)
    assert arrivals.receive([first]) == [first]
    assert arrivals.receive([second]) == []
    hooks.pass_time(slept.append, scheduler)
    assert slept == [scheduler] and arrivals.receive([]) == []
    idle = True
    clock.expect(9.0)  # a copy of the first one's KV
    for _ in range(2):
        hooks.pass_time(slept.append, scheduler)
    assert clock.now() == 11.0 and arrivals.receive([]) == [second]
    assert slept == [scheduler]


def test_tokens_that_no_step_has_made_are_stamped_when_they_are_handed_over(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode server's: the first of each stream, and none of one that goes on after a pause."""
    arrivals = VirtualArrivals(clock)
    monkeypatch.setattr(hooks, "_arrivals", lambda: arrivals)
    clock.wait_until(7.0)
    new = SimpleNamespace(output_ids=[5], customized_info=None)
    resumed = SimpleNamespace(output_ids=[5, 6], customized_info={hooks.STAMP_KEY: [1.0, 2.0]})
    hooks.stamp_handed_over(None, SimpleNamespace(reqs=[new, resumed]))
    assert new.customized_info == {hooks.STAMP_KEY: [7.0]}
    assert resumed.customized_info == {hooks.STAMP_KEY: [1.0, 2.0]}


def test_nothing_goes_on_until_the_next_turn_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, given_up = iter([["a"], [], ["b"], ["c"]]), []
    arrivals = SimpleNamespace(
        receive=list, awaits_turns=True, give_up_turns=lambda: given_up.append(True)
    )
    monkeypatch.setattr(hooks, "_arrivals", lambda: arrivals)
    monkeypatch.setattr(hooks, "LOOK_S", 0.0)
    monkeypatch.setattr(hooks, "LOOKS", 3)

    def arrive() -> list[str]:
        came = next(looks)
        arrivals.awaits_turns = came != ["b"]
        return came

    assert hooks.hold_arrivals(arrive) == ["a", "b"] and not given_up
    looks = iter([[]] * 9)
    assert hooks.hold_arrivals(arrive) == [] and given_up
