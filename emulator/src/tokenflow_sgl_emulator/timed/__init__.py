"""The emulated accelerator: SGLang's streams and overlap, on a device that only keeps time.

Nothing is computed and no KV is kept; what a step or a copy would take on the target comes from a
:class:`tokenflow_sgl.lab.profiles.DeviceProfile`. Everything above the device is the real engine.
"""
