"""A step takes the device's time, layer by layer, each after its KV has arrived from the host."""

from typing import Any

from tokenflow_sgl_emulator.timed.device import EmulatedDevice
from tokenflow_sgl_emulator.timed.step_work import StepWork


def take_step(
    device: EmulatedDevice, work: StepWork, layers: range, of: int, loads: Any, layerwise: Any
) -> None:
    """Let the device compute some layers of a step.

    Args:
        device: The device of this process.
        work: What all of the step's layers compute.
        layers: Those of them that are computed.
        of: The model's layers.
        loads: As of `waits`.
        layerwise: As of `waits`.
    """
    per_layer = work.seconds(device.profile) / of
    stream = device.begin_step()
    if layerwise is not None:
        for layer in layers:
            layerwise.before_layer(layer)
            device.compute(stream, per_layer)
            layerwise.after_layer(layer)
    elif loads is None or loads.consumer_index < 0:
        device.compute(stream, per_layer * len(layers))
    else:
        for layer in layers:
            loads.wait_until(layer)
            device.compute(stream, per_layer)
    device.end_step(stream)


def waits() -> tuple[Any, Any]:
    """What a layer waits for.

    Returns:
        SGLang's record of which layers of a KV load have landed; None without HiCache. And an
        attention that has KV of layers on the host, as tokenflow's has; None: another one.
    """
    from sglang.srt.model_executor.forward_context import get_attn_backend, get_token_to_kv_pool

    backend = get_attn_backend()
    layerwise = backend if hasattr(backend, "before_layer") else None
    return get_token_to_kv_pool().layer_transfer_counter, layerwise
