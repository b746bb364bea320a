"""How much slower than real time an emulated device must run so that this machine keeps up.

Behind every emulated step stands real work: SGLang's scheduling and, for every token, its way
through the scheduler's output, the HTTP server and the client that reads it. Its cost was measured
once (`docs/emulator.md`), is scaled by how fast this machine runs plain Python, and compared with
the target's step times over all batch sizes that its KV pool allows.
"""

import json
import math
import os
import time

from tokenflow_sgl.lab.profiles import DeviceProfile

LOWEST, HIGHEST = 0.01, 1000.0
"""What a dilation may be."""
STEP_SECONDS = 2.5e-3
"""Real work per step, whatever its size, on the reference machine with two cores."""
ROW_SECONDS = 1.0e-4
"""Real work per token of a step on the reference machine: two cores share engine and client."""
REFERENCE_LOOP_SECONDS = 9.5e-3
"""What `_python_seconds` takes on the reference machine."""
MARGIN = 1.3
"""Room for noise: late steps cannot be made up for."""
SHORT_CONTEXT = 512
"""Mean context, tokens, at which batches are largest relative to their step time."""


def choose_dilation(profile: DeviceProfile, kv_tokens: int, max_running: int) -> float:
    """Wall-clock seconds per emulated second, at least 1, rounded up to a quarter.

    Args:
        profile: The target device.
        kv_tokens: Size of the KV pool that is emulated, tokens.
        max_running: Most requests that run at once.
    """
    largest = max(1, min(max_running, kv_tokens // SHORT_CONTEXT))
    speed = machine_slowness()
    needed = 1.0
    batch = 1
    while True:
        real = (STEP_SECONDS + ROW_SECONDS * batch) * speed * MARGIN
        needed = max(needed, real / profile.decode_seconds(batch, batch * SHORT_CONTEXT))
        if batch == largest:
            return -(-needed // 0.25) * 0.25
        batch = min(2 * batch, largest)


def parse_dilation(text: str) -> float | None:
    """A dilation as it is typed; None for auto.

    Raises:
        ValueError: It is neither auto nor a number in range.
    """
    if text == "auto":
        return None
    try:
        dilation = float(text)
    except ValueError:
        dilation = math.nan
    if not LOWEST <= dilation <= HIGHEST:
        raise ValueError(
            f"--time-dilation is {text!r}; allowed is auto or a number from {LOWEST:g} to "
            f"{HIGHEST:g}"
        )
    return dilation


def machine_slowness() -> float:
    """Real work on this machine relative to the reference: its Python speed, and its cores.

    Engine, HTTP server and client are processes of their own, so a third core takes a third of
    the work; more do not help, for each of them has one busy thread.
    """
    cores = len(os.sched_getaffinity(0))
    return min(_python_seconds() for _ in range(3)) / REFERENCE_LOOP_SECONDS * 2 / min(cores, 3)


def _python_seconds() -> float:
    """CPU seconds of a fixed piece of Python: what the engine does per token, in small."""
    started = time.process_time()
    for number in range(2000):
        record = {"index": number, "token": number * 7 % 4096, "finish_reason": None}
        json.loads(json.dumps({"text": "", "output_ids": [number], "meta_info": record}))
    return time.process_time() - started
