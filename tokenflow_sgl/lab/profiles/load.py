"""Profiles by the names of a device and a model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from tokenflow_sgl.lab.profiles import roofline
from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile
from tokenflow_sgl.lab.profiles.devices import DEVICES, Device
from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.launch import default_launch
from tokenflow_sgl.lab.profiles.model_shapes import MODELS, Model
from tokenflow_sgl.lab.profiles.pool import graph_rows, host_pool_tokens, kv_pool_tokens

Entry = TypeVar("Entry")


@cache
def load_profile(device: str, model: str) -> DeviceProfile:
    """The profile of a device, or of a group, that serves a model alone, in bfloat16.

    Takes seconds where aiconfigurator-core is asked; then its answer is kept (`table_cache`).

    Args:
        device: A name in `DEVICES`.
        model: A name in `MODELS`.

    Raises:
        ProfileError: A name is unknown, the model does not fit, or aiconfigurator-core is needed
            and not installed.
    """
    chosen, shape = find_device(device), find_model(model)
    pool = pool_tokens(chosen, shape)
    if chosen.system is None:
        decode, prefill = roofline.tables(chosen, shape)
        source = roofline.source(chosen)
    else:
        # Only here: it needs numpy, and the command line lists devices without loading that.
        from tokenflow_sgl.lab.profiles import aiconfigurator

        times = aiconfigurator.step_times(shape, chosen.system, chosen.ranks)
        decode, prefill, source = times.decode, times.prefill, times.source
    return DeviceProfile(
        device=chosen.name,
        model=shape.name,
        source=source,
        layers=shape.layers,
        kv_bytes_per_token=shape.held_kv_bytes(chosen.ranks),
        device_memory=chosen.memory,
        weight_bytes=shape.weight_bytes,
        kv_pool_tokens=pool,
        host_pool_tokens=host_pool_tokens(pool),
        host_to_device=chosen.link,
        device_to_host=chosen.link,
        decode=decode,
        prefill=prefill,
        launch=default_launch(shape.layers, graph_rows(chosen.memory, chosen.ranks)),
    )


def find_device(name: str) -> Device:
    """The device of that name.

    Raises:
        ProfileError: There is none; the message lists all.
    """
    return _find(DEVICES, "device", name)


def find_model(name: str) -> Model:
    """The model of that name.

    Raises:
        ProfileError: There is none; the message lists all.
    """
    return _find(MODELS, "model", name)


def pool_tokens(device: Device, model: Model) -> int:
    """KV tokens that fit beside the model on the device.

    Raises:
        ProfileError: The model does not fit, or cannot be divided among the devices of the group.
    """
    ranks = device.ranks
    if model.heads % ranks:
        raise ProfileError(
            f"{model.name} cannot be divided on {device.name}: it has {model.heads} heads, "
            f"of which {ranks} devices must have equally many."
        )
    try:
        weights, kv = model.held_weight_bytes(ranks), model.held_kv_bytes(ranks)
        return kv_pool_tokens(device.memory, -(-weights // ranks), kv // ranks, ranks=ranks)
    except ProfileError as error:
        raise ProfileError(f"{model.name} does not fit on {device.name}: {error}") from None


def _find(known: Mapping[str, Entry], kind: str, name: str) -> Entry:
    if name not in known:
        raise ProfileError(f"{kind} is {name!r}; allowed are {', '.join(known)}.")
    return known[name]
