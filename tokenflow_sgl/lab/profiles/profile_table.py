"""A profile as tables, and the sizes at which tables and picture show it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows of decode steps."""
CONTEXTS = (512, 1024, 2048, 4096, 8192)
"""KV tokens per row of decode steps."""
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""New tokens of prefill steps."""
PREFIXES = (0, 2048, 8192, 16384)
"""Cached tokens of prefill steps."""


def facts(profile: DeviceProfile) -> Table:
    """What a profile says beside its step times."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("profile", f"{profile.model} on {profile.device}")
    table.add_row("times from", profile.source)
    table.add_row("KV", f"{profile.kv_bytes_per_token} bytes per token, {profile.layers} layers")
    table.add_row(
        "pools",
        f"{profile.kv_pool_tokens} tokens on the device, {profile.host_pool_tokens} on the host",
    )
    for name, link in (
        ("host to device", profile.host_to_device),
        ("device to host", profile.device_to_host),
    ):
        tokens = link.bandwidth / profile.kv_bytes_per_token
        table.add_row(
            name,
            f"{link.bandwidth / 1e9:.1f} GB/s = {tokens:.0f} tokens/s, "
            f"{link.latency * 1e6:.0f} us to start",
        )
    pieces = profile.pieces
    if pieces.call or pieces.set_up:
        table.add_row(
            "pieces of copies",
            f"{pieces.call * 1e6:.1f} us per call on the CPU, {pieces.between * 1e6:.1f} us on the "
            f"copy engine, {pieces.set_up * 1e6:.2f} us per piece",
        )
    if pieces.gather:
        table.add_row("gathering kernels", f"{pieces.gather / 1e9:.1f} GB/s at most")
    launch = profile.launch
    if launch.prefill or launch.decode:
        table.add_row(
            "launch takes",
            f"{launch.prefill * 1e3:.1f} ms for prefills, {launch.decode * 1e3:.1f} ms for "
            f"decode steps of more than {launch.graph_rows} rows",
        )
    return table


def step_times(profile: DeviceProfile) -> tuple[Table, Table]:
    """Times of decode steps and of prefill steps, milliseconds."""
    columns = [f"{context} tokens" for context in CONTEXTS]
    decode = plain_table("rows", *columns, right=range(len(columns) + 1))
    decode.title = "Decode step by context of each row, ms"
    for batch in BATCHES:
        times = [profile.decode_seconds(batch, batch * context) for context in CONTEXTS]
        decode.add_row(str(batch), *(f"{1e3 * seconds:.2f}" for seconds in times))
    columns = [f"{prefix} cached" for prefix in PREFIXES]
    prefill = plain_table("new tokens", *columns, right=range(len(columns) + 1))
    prefill.title = "Prefill step of one request, ms"
    for length in LENGTHS:
        times = [
            profile.prefill_seconds(length, attention_work(length, prefix)) for prefix in PREFIXES
        ]
        prefill.add_row(str(length), *(f"{1e3 * seconds:.2f}" for seconds in times))
    return decode, prefill


def plain_table(*columns: str, right: Iterable[int]) -> Table:
    """A plain table with some columns flush right, by index."""
    table = Table(*columns, box=None, pad_edge=False, title_justify="left")
    for index in right:
        table.columns[index].justify = "right"
    return table
