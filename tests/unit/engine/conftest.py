"""Imports SGLang once, before the tests do: its imports warn about third parties."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sglang.srt.managers.scheduler  # noqa: F401
