from busy_server import recorder

__all__ = ["recorder"]
