"""Where the emulated device meets SGLang's scheduler loop."""

from collections.abc import Callable
from typing import Any

from tokenflow_sgl_emulator.timed.device import the_device
from tokenflow_sgl_emulator.timed.timed_streams import current_stream

STATE_KEY = "emulated_device"
"""Key of the device's report in each ``internal_states`` entry of ``/server_info``."""


def wait_for_result(scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before a result is processed: without overlap SGLang waits by reading it.

    On a real device ``.tolist()`` waits; here values are there at once. With overlap SGLang waits
    for the result's copy event itself.
    """
    if not scheduler.enable_overlap:
        current_stream().synchronize()


def note_idle(_scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before SGLang's idle work: the device waits for requests, not for the CPU."""
    the_device().idle()


def add_report(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's internal state: add what the device is and whether the CPU kept up."""
    output = original(*args, **kwargs)
    output.internal_state[STATE_KEY] = the_device().report()
    return output
