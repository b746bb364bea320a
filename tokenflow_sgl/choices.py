"""Closed choices of options, each listed once, for the command line and the packages behind it.

Imports nothing, so that the command line can list them without loading those packages.
"""

from __future__ import annotations

from enum import StrEnum


class Api(StrEnum):
    """The endpoint that a replay's requests go to."""

    generate = "generate"
    completions = "completions"
    chat = "chat"


class Sessions(StrEnum):
    """When later turns of a session are sent."""

    closed = "closed"
    """`think_s` after the previous turn's answer has ended."""
    open = "open"
    """At their own arrival in the trace, whether the turn before has ended or not."""


class WritePolicy(StrEnum):
    """When HiCache copies KV to the host; those of its policies that can be simulated."""

    write_through = "write_through"
    write_back = "write_back"


class IoBackend(StrEnum):
    """What copies KV between device and host in HiCache; those that can be simulated."""

    kernel = "kernel"
    """A kernel of SGLang's that gathers and scatters."""
    direct = "direct"
    """The copy engine, piece by piece."""


class MemLayout(StrEnum):
    """How HiCache's host memory is laid out; those layouts that can be simulated."""

    page_first = "page_first"
    layer_first = "layer_first"
    page_first_direct = "page_first_direct"
    page_head = "page_head"


class PrefetchPolicy(StrEnum):
    """How long HiCache waits for its storage before it admits a request."""

    wait_complete = "wait_complete"
    timeout = "timeout"
    best_effort = "best_effort"


class Restoring(StrEnum):
    """How stored KV comes back from a simulated storage."""

    off = "off"
    """As in stock SGLang."""
    auto = "auto"
    """Both sources at once, where that is sooner: the head computed, the tail fetched."""


class StorageWrites(StrEnum):
    """What copying KV to a simulated storage costs."""

    free = "free"
    """Nothing: it goes another way."""
    shared = "shared"
    """The time of the link that fetches come over."""


class Contender(StrEnum):
    """What a simulation can compare."""

    fcfs = "fcfs"
    fcfs_hicache = "fcfs-hicache"
    chunked = "chunked"
    prefill_interval = "prefill-interval"
    shortest_prefill = "shortest-prefill"
    lpm = "lpm"
    hrrn = "hrrn"
    hrrn_hicache = "hrrn-hicache"
    priority = "priority"
    vtc = "vtc"
    edf = "edf"
    qoserve = "qoserve"
    vllm = "vllm"
    tokenflow = "tokenflow"
    paper = "paper"
    andes = "andes"
    least_slack = "least-slack"
    round_robin = "round-robin"


class Router(StrEnum):
    """Which of several simulated servers gets a request."""

    round_robin = "round-robin"
    least_loaded = "least-loaded"
    buffer_aware = "buffer-aware"
    lmetric = "lmetric"
    headroom = "headroom"


class Objective(StrEnum):
    """What a search for parameters improves."""

    effective = "effective"
    waiting = "waiting"
    p99_ttft = "p99-ttft"


class TbtRule(StrEnum):
    """When a request has met its objective for the time between tokens."""

    p99 = "p99"
    """99 % of its gaps are within the objective (tail TBT, the usual meaning)."""
    mean = "mean"
    """Its TPOT is within the objective, as in `sglang.bench_serving --goodput tpot:...`."""
    every = "every"
    """Each single gap is within the objective."""


class Staging(StrEnum):
    """What device memory the copies need in which offloaded KV is used."""

    layer = "layer"
    """As much as the layer with the most offloaded KV (OrbitFlow Eq. 1). It leaves out that a copy
    for one stream is under way while another stream's is in use: an executor needs a buffer that
    streams share, and must hold copies back while it is full."""
    stream = "stream"
    """One buffer for each stream that offloads anything, as large as its KV of a layer: what an
    executor without a shared buffer needs. In OrbitFlow's Fig. 3 C that is 74 blocks instead of
    70."""


class PlacementSolver(StrEnum):
    """What finds the placement of KV."""

    search = "search"
    """Our own: a linear bound, local search, and branch and bound for small batches."""
    milp = "milp"
    """scipy's mixed-integer program."""
