"""KV layer by layer: some layers' KV of a stream on the device, the others' on the host."""
