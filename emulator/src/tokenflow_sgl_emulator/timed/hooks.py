"""Where the emulated device meets SGLang's scheduler loop."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenflow_sgl_emulator.timed.clock import VirtualClock, the_clock
from tokenflow_sgl_emulator.timed.device import the_device
from tokenflow_sgl_emulator.timed.timed_streams import current_stream
from tokenflow_sgl_emulator.timed.virtual_arrivals import STAMP_KEY, VirtualArrivals

STATE_KEY = "emulated_device"
"""Key of the device's report in each ``internal_states`` entry of ``/server_info``."""
LOOK_S = 1e-3
"""Wall-clock seconds between two looks at whether a conversation's next turn has come."""
LOOKS = 60_000
"""After so many the turn is given up. They are counted, so that all ranks do so together."""


def wait_for_result(scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before a result is processed: without overlap SGLang waits by reading it.

    On a real device ``.tolist()`` waits; here values are there at once. With overlap SGLang waits
    for the result's copy event itself. Not by the stream's own method, which SGLang takes from its
    schedule stream where the device is a CPU.
    """
    if not scheduler.enable_overlap:
        the_clock().wait_until(current_stream().done_at)


def note_idle(_scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before SGLang's idle work: the device waits for requests, not for the CPU."""
    the_device().idle()


def add_report(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's internal state: add what the device is and whether the CPU kept up."""
    output = original(*args, **kwargs)
    output.internal_state[STATE_KEY] = the_device().report()
    return output


# ---- on a virtual clock --------------------------------------------------------------


@cache
def _arrivals() -> VirtualArrivals:
    clock = the_clock()
    assert isinstance(clock, VirtualClock), "these hooks are registered with it only"
    return VirtualArrivals(clock)


def hold_arrivals(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's intake: it sees a request when the virtual clock says so.

    Where the client has an answer and its next turn is not there, nothing goes on until it is.
    """
    arrivals = _arrivals()
    passed = arrivals.receive(original(*args, **kwargs))
    for _ in range(LOOKS):
        if not arrivals.awaits_turns:
            return passed
        time.sleep(LOOK_S)
        passed += arrivals.receive(original(*args, **kwargs))
    arrivals.give_up_turns()
    return passed


def stamp_result(scheduler: Any, batch: Any, result: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before a result is processed: wait for it, and give its tokens the moment as their time."""
    wait_for_result(scheduler)
    if result.copy_done is not None:
        result.copy_done.synchronize()
    _arrivals().note_answers(batch.reqs)
    output = getattr(result, "logits_output", None)
    if output is not None:
        # SGLang hands this on with each token, in the answer's meta_info.
        output.customized_info = {STAMP_KEY: [_arrivals().elapsed()] * len(batch.reqs)}


def stamp_handed_over(_processor: Any, batch: Any) -> None:
    """Before streams join a decode server: tokens without a time get the present moment.

    The first of a stream is made by no step of its own; one that goes on after a pause has all.
    """
    for req in batch.reqs:
        told = req.customized_info = req.customized_info or {}
        stamps = told.setdefault(STAMP_KEY, [])
        stamps += [_arrivals().elapsed()] * (len(req.output_ids) - len(stamps))


def pass_time(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's idle work: nothing waits for the device, so something else moves the clock.

    With requests there (paused ones, say), that is the pass itself. Without, the next arrival:
    then the pass is over at once, for SGLang's idle work may sleep. Without either, the device ends
    its copies, and the clock stands, or the next trace begins.
    """
    note_idle(scheduler)
    clock = the_clock()
    assert isinstance(clock, VirtualClock)
    if not scheduler.is_fully_idle():
        _arrivals().idle_pass()
    elif _arrivals().jump():
        return None
    else:
        clock.settle()
        if _arrivals().next_trace():
            return None
    return original(scheduler, *args, **kwargs)
