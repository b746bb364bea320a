"""The demo behind ``tokenflow demo``: one burst of readers, stock SGLang against tokenflow."""
