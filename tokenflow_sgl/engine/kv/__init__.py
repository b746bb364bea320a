"""What happens to KV in SGLang: taken off the device, written to the host, brought back."""
