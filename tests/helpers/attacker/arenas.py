"""The servers that are attacked: flags, ranks, models, and what has to happen meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attacker.asking import TENANT
from attacker.attacked_models import COMPRESSED
from servers.rivals import HARMLESS, beside
from servers.tuned import CHECK_RANKS, tuned

from tokenflow_sgl.engine.sglang.version import at_least
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

LATE = {"TOKENFLOW_EMU_LATE_COPIES": "4"}
"""Copies land as late as SGLang and we let them."""
TWO_RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
TOKENFLOW = ("--scheduler", "tokenflow")
SHORT_RESTS = tuned(longest_rest=3)
"""Clients who look away do so for as long as they may."""
FORCED = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptEvery")
CHUNKS = (*TOKENFLOW, "--tokenflow-policy", "forced:PreemptInChunks")
IN_CHUNKS = ("preemptions_total", "loaded_ahead_chunks_total")
NOT_AT_ONCE = frozenset({"retract-flush", "retract-weights"})
"""With a storage a flush has to wait for it, in a pause, too; test_restoration.py does. A decode
server has to wait for KV that is on its way."""
BOTH_WAYS = ("restorations_total", "restored_tokens_total")
# Sixteen clients ask for about 1,500 tokens at a time.
LARGE_HOST = ("--max-total-tokens", "448", "--hicache-ratio", "6")
SMALL_HOST = ("--max-total-tokens", "448", "--hicache-ratio", "0.5")
HALF_EACH = ("--max-total-tokens", "288", "--hicache-ratio", "6")
"""Of memory, for each of two ranks that have their own streams."""
DP_ATTENTION = ("--enable-dp-attention", "--dp-size", "2", "--tp-size", "2")
DELTAS = ("--max-mamba-cache-size", "20", "--mamba-track-interval", "64")
"""Four streams run at once."""
DRAFTS = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
TENANTS_AND_WAITS = (
    *("--tokenflow-tenant-by", f"header:{TENANT}", "--tokenflow-max-wait", "5"),
    *("--tokenflow-classes", str(Path(__file__).with_name("tenants.toml"))),
)
"""Requests of all arenas have deadlines."""
MODEL = "{model}"
"""Stands for the folder of the model that is served."""
TREES = (
    # It drafts for itself: most of what is accepted are nodes deep in the trees.
    *("--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", MODEL),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
    *("--speculative-num-draft-tokens", "8"),
)
ITS_OWN_DRAFTS = (
    # SGLang takes no other name for the layer that DeepSeek V4 brings.
    *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
PAGES_OF_256 = (
    *("--max-total-tokens", "3072", "--hicache-ratio", "6", "--swa-full-tokens-ratio", "0.75"),
    *("--max-running-requests", "8", "--chunked-prefill-size", "512"),
)
"""DeepSeek V4's. Sixteen clients ask for about 7,000 tokens."""
EVICT_OFTEN = {"SGLANG_SWA_EVICTION_INTERVAL": "8"}
"""SGLang frees what has left a window in bundles of 128 tokens: longer than most answers."""
LAYERS = (
    *("--tokenflow-layerwise", "layer_plans_made_up:AnyLayers"),
    *("--tokenflow-layerwise-ratio", "2", "--max-total-tokens", "640"),
)
"""The device holds what 320 tokens take in both layers."""
UNNOTED = {"TOKENFLOW_TEST_LAYERS": "/dev/null"}
NO_READERS = frozenset({"bad-rate", "unknown-class", "unknown-key", "rests"})
"""Requests that only our scheduler refuses, and what only it does."""
ONE_SERVER = frozenset(
    {"samples", "rests", "weights", "weights-sweep", "in-place-weights", *NOT_AT_ONCE}
)
"""Left out where there are two: each has weights of its own, and the front sends no lists and no
rates."""
KV_IN_TIME = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60"}
"""Seconds after which a decode server gives a stream up whose KV does not come, SGLang's 300 are
longer than clients wait here: where a client leaves in a pause, SGLang loses the abort."""
RESTORED = (
    # Tails take some hundredths of a second, so that what happens meanwhile happens often.
    *storage_flags(prefetch_tokens=8, read_gbps=0.005, write_gbps=1.0),
    *("--page-size", "4", "--chunked-prefill-size", "32"),
    *("--tokenflow-restore", "splits:SplitAnywhere"),
)


@dataclass(frozen=True)
class Arena:
    """A server to attack.

    Attributes:
        flags: Of the server.
        ranks: Tensor-parallel ranks.
        model: The tiny model that it serves.
        env: More variables of its processes.
        expects: Metrics of ours that have to rise, so that the attack means something.
        full: The server has a limit to its queue.
        door: It tells tenants apart, and refuses what would wait for long.
        beyond: Tokens by which an aborted answer may exceed its limit: SGLang keeps a whole step.
        without: What is not done to it.
        late: Seconds after an end of all requests in which requests may still be ended by it.
        rival: Another plugin has hooks on what ours has hooks on.
        pair: It is the decode server of a disaggregated pair, and `flags` are its own.
    """

    flags: tuple[str, ...]
    ranks: int = 1
    model: str = "qwen3"
    env: Mapping[str, str] = field(default_factory=dict)
    expects: tuple[str, ...] = ("preemptions_total", "written_ahead_tokens_total")
    full: bool = False
    door: bool = False
    beyond: int = 0
    without: frozenset[str] = frozenset()
    late: float = 0.0
    rival: bool = False
    pair: bool = False

    def refused(self) -> bool:
        """Whether the installed SGLang is too old for its model, its drafts or a pair."""
        drafts, windows = "--speculative-algorithm" in self.flags, "window" in self.model
        refused = self.pair or drafts or windows or self.model in COMPRESSED
        return refused and not at_least("0.5.23")

    def all_flags(self, model: Path) -> tuple[str, ...]:
        """All that the server is started with; `model`: the folder of its model."""
        two = ("--tp-size", str(self.ranks), CHECK_RANKS) if self.ranks > 1 else ()
        rests = () if "rests" in self.without else SHORT_RESTS
        return (*(str(model) if flag == MODEL else flag for flag in self.flags), *two, *rests)

    def all_env(self) -> dict[str, str]:
        """The variables that it is started with."""
        ranks = TWO_RANKS if self.ranks > 1 else {}
        return {**LATE, **ranks, **(beside(HARMLESS) if self.rival else {}), **self.env}


ARENAS = {
    "forced, page 1": Arena((*FORCED, *LARGE_HOST), rival=True),
    "forced, page 16, small host": Arena(
        (*FORCED, *SMALL_HOST, "--page-size", "16", "--chunked-prefill-size", "32")
    ),
    "chunks, page 1": Arena((*CHUNKS, *LARGE_HOST), expects=IN_CHUNKS),
    "chunks, page 16, two ranks": Arena(
        (*CHUNKS, *LARGE_HOST, "--page-size", "16"), ranks=2, expects=IN_CHUNKS
    ),
    "shipped, page 1, short queue": Arena(
        (*TOKENFLOW, *LARGE_HOST, "--max-queued-requests", "4"), full=True
    ),
    "shipped, page 16": Arena((*TOKENFLOW, *LARGE_HOST, "--page-size", "16")),
    "forced, page 16, two ranks": Arena((*FORCED, *LARGE_HOST, "--page-size", "16"), ranks=2),
    "shipped, page 1, two ranks": Arena((*TOKENFLOW, *LARGE_HOST), ranks=2, rival=True),
    "restored": Arena((*FORCED, *SMALL_HOST, *RESTORED), expects=BOTH_WAYS, without=NOT_AT_ONCE),
    "restored, two ranks": Arena(
        (*TOKENFLOW, *SMALL_HOST, *RESTORED), ranks=2, expects=BOTH_WAYS, without=NOT_AT_ONCE
    ),
    "windows": Arena((*FORCED, *LARGE_HOST), model="qwen3-window", env=EVICT_OFTEN),
    "windows, few, page 16": Arena(
        (*TOKENFLOW, *LARGE_HOST, "--page-size", "16", "--swa-full-tokens-ratio", "0.5"),
        model="qwen3-window",
        env=EVICT_OFTEN,
    ),
    "latent": Arena((*FORCED, *LARGE_HOST, "--page-size", "16"), model="deepseek"),
    "convolutions, few": Arena(
        (*FORCED, *LARGE_HOST, "--max-mamba-cache-size", "12"),
        model="lfm2",
        expects=("preemptions_total",),
    ),
    "deltas, few, page 16": Arena(
        (*TOKENFLOW, *LARGE_HOST, "--page-size", "16", *DELTAS),
        model="qwen3.5",
        expects=("preemptions_total",),
    ),
    "deltas and drafts": Arena(
        (*FORCED, *LARGE_HOST, *DRAFTS, "--max-mamba-cache-size", "60", *DELTAS[2:]),
        model="qwen3.5",
        expects=("preemptions_total",),
        beyond=3,
    ),
    "drafts": Arena((*FORCED, *LARGE_HOST, *DRAFTS), beyond=3),
    "trees": Arena((*FORCED, *LARGE_HOST, *TREES), beyond=3),
    "windows and drafts": Arena(
        (*FORCED, *LARGE_HOST, *DRAFTS), model="qwen3-window", env=EVICT_OFTEN, beyond=3
    ),
    "windows and trees, page 1": Arena(
        (*TOKENFLOW, *LARGE_HOST, *TREES), model="qwen3-window", env=EVICT_OFTEN, beyond=3
    ),
    "compressed": Arena((*FORCED, *PAGES_OF_256), model="deepseek-v4"),
    "compressed and drafts": Arena(
        (*FORCED, *PAGES_OF_256, *ITS_OWN_DRAFTS),
        model="deepseek-v4-drafts",
        expects=("preemptions_total",),
        beyond=3,
    ),
    "tenants and waits, two ranks": Arena(
        (*TOKENFLOW, *LARGE_HOST, *TENANTS_AND_WAITS),
        ranks=2,
        expects=("preemptions_total", "written_ahead_tokens_total", "refused_requests_total"),
        door=True,
    ),
    # SGLang's ranks take in new requests before the operator's, which came first.
    "DP attention": Arena((*FORCED, *HALF_EACH, *DP_ATTENTION), env=TWO_RANKS, late=2.0),
    "pair": Arena(
        (*FORCED[2:], "--max-total-tokens", "704"),
        env=KV_IN_TIME,
        expects=("preemptions_total",),
        without=ONE_SERVER,
        pair=True,
    ),
    "block groups, page 16, two ranks": Arena(
        (*CHUNKS, *LARGE_HOST, *tuned(block_groups=True), "--page-size", "16"),
        ranks=2,
        expects=IN_CHUNKS,
    ),
    "layers": Arena(LAYERS, env=UNNOTED, expects=(), without=NO_READERS),
    "layers, nothing shared": Arena(
        (*FORCED, *LAYERS, "--disable-radix-cache"), env=UNNOTED, expects=("preemptions_total",)
    ),
    "layers, forced": Arena((*FORCED, *LAYERS), env=UNNOTED, expects=("preemptions_total",)),
    "layers, shipped, two ranks": Arena(
        (*TOKENFLOW, *LAYERS), ranks=2, env=UNNOTED, expects=("preemptions_total",)
    ),
}
SHORT = (("forced, page 1",),)
"""Arenas that are attacked at once, a turn after the other; all are attacked for long."""
SLOW = (
    ("forced, page 1", "shipped, page 1, two ranks"),
    ("shipped, page 1, short queue", "forced, page 16, two ranks"),
    ("forced, page 16, small host", "shipped, page 16"),
    ("chunks, page 1", "chunks, page 16, two ranks"),
    ("restored", "restored, two ranks"),
    ("windows", "drafts", "trees"),
    ("windows, few, page 16", "latent"),
    ("windows and drafts", "windows and trees, page 1"),
    ("compressed", "compressed and drafts"),
    ("tenants and waits, two ranks",),
    ("DP attention", "layers"),
    ("layers, forced", "layers, shipped, two ranks"),
    ("pair", "layers, nothing shared"),
    ("block groups, page 16, two ranks",),
    ("convolutions, few", "deltas, few, page 16", "deltas and drafts"),
)
