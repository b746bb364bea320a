"""Generators: what arrives when, how long it is, who reads it; `generate` puts them together."""
