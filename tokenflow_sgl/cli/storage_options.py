"""Options of simulated servers about HiCache's storage tier, and restorations from it."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenflow_sgl.choices import PrefetchPolicy, Restoring, StorageWrites
from tokenflow_sgl.cli.option_checks import finite

_SERVER = "The server"

StorageGbps = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=100_000.0,
        callback=finite,
        help="Gbit/s from a storage below the host pool, which keeps all that the host ever had. "
        "0: no storage. Without a host pool there is none either.",
        rich_help_panel=_SERVER,
    ),
]
StorageLatency = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1e9,
        callback=finite,
        help="Microseconds between asking the storage and the first byte.",
        rich_help_panel=_SERVER,
    ),
]
StorageCopies = Annotated[
    StorageWrites,
    typer.Option(
        help="What copies to the storage cost: free, nothing; shared, the time of the same link.",
        rich_help_panel=_SERVER,
    ),
]
StoragePrefetch = Annotated[
    PrefetchPolicy,
    typer.Option(
        help="How long a request waits for the storage, as SGLang's option.",
        rich_help_panel=_SERVER,
    ),
]
Restore = Annotated[
    Restoring,
    typer.Option(
        help="How KV comes back from the storage: off, as in SGLang; auto, the head computed while "
        "the tail comes, where that is sooner.",
        rich_help_panel=_SERVER,
    ),
]
