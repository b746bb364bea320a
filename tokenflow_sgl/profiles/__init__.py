"""How long steps and copies take on a device: tables for the emulator and the simulator."""

from tokenflow_sgl.profiles.device_profile import DeviceProfile
from tokenflow_sgl.profiles.devices import DEVICES, Device
from tokenflow_sgl.profiles.document import ProfileError
from tokenflow_sgl.profiles.launch import Launch
from tokenflow_sgl.profiles.link import Link
from tokenflow_sgl.profiles.load import load_profile
from tokenflow_sgl.profiles.model_shapes import MODELS, Model
from tokenflow_sgl.profiles.pieces import PieceCosts, Pieces
from tokenflow_sgl.profiles.tables import DecodeTable, PrefillTable

__all__ = [
    "DEVICES",
    "MODELS",
    "DecodeTable",
    "Device",
    "DeviceProfile",
    "Launch",
    "Link",
    "Model",
    "PieceCosts",
    "Pieces",
    "PrefillTable",
    "ProfileError",
    "load_profile",
]
