"""Model classes that SGLang finds here first (``SGLANG_EXTERNAL_MODEL_PACKAGE``).

SGLang otherwise imports all of its several hundred models before it serves one, which takes longer
than everything else at the start of a tiny one. Other architectures are still found: SGLang then
imports its own.
"""

PACKAGE = __name__
"""What ``SGLANG_EXTERNAL_MODEL_PACKAGE`` is set to, unless the user set it."""
