"""Restoration on SGLang: a prefix is computed from its head while its tail is fetched."""
