"""What operators see: metrics, the log of decisions, traces, SGLang's own gauges."""
