"""The sizes at which a profile is shown, as table and as picture."""

from __future__ import annotations

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows of decode steps."""
CONTEXTS = (512, 1024, 2048, 4096, 8192)
"""KV tokens per row of decode steps."""
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""New tokens of prefill steps."""
PREFIXES = (0, 2048, 8192, 16384)
"""Cached tokens of prefill steps."""
