"""The ``tokenflow`` command. Importing it loads no engine, so that ``--help`` is instant."""

from tokenflow_sgl.cli.app import main

__all__ = ["main"]
