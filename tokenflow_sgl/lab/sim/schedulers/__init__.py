"""Schedulers of the simulated engine: SGLang's own, its settings, fair shares, and any policy."""
