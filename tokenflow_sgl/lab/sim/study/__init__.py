"""Many simulations of one trace: sweeps, the search for parameters, and what none can beat."""
