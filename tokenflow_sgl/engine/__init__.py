"""The live body: SGLang's scheduler with our policy in it. Only here is sglang imported."""
