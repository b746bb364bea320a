"""How stored KV comes back to the device soonest: computed, loaded, or both at once. Pure plans.

After CacheFlow (arXiv 2604.25080). `token_wise` and `layer_wise` divide one prefix, `plan` chooses
between them and either source alone, `batch` shares links and device among several requests, and
`multi_gpu` says what tensor parallelism and pipeline stages change.
"""

from tokenflow_sgl.restoration.token_wise import (
    Fetch,
    Seconds,
    Split,
    best_split,
    head_tokens,
    in_chunks,
)

__all__ = [
    "Fetch",
    "Seconds",
    "Split",
    "best_split",
    "head_tokens",
    "in_chunks",
]
