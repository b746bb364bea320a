"""A trained model that needs no hub: SmolLM2-135M-Instruct, out of a package of the index."""
