"""Gateways that people put in front of servers, as real programs."""
