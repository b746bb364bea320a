"""The demo behind ``tokenflow demo``: one burst of readers, stock SGLang beside tokenflow."""
