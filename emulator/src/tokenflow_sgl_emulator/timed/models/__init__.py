"""SGLang looks for model classes here (``SGLANG_EXTERNAL_MODEL_PACKAGE``)."""
