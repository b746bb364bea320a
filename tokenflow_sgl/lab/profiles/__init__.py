"""How long steps and copies take on a device: tables for the emulator and the simulator."""

from tokenflow_sgl.lab.profiles.device_profile import DeviceProfile
from tokenflow_sgl.lab.profiles.devices import DEVICES, Device
from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.launch import Launch
from tokenflow_sgl.lab.profiles.link import Link
from tokenflow_sgl.lab.profiles.load import load_profile
from tokenflow_sgl.lab.profiles.model_shapes import MODELS, Model
from tokenflow_sgl.lab.profiles.pieces import PieceCosts, Pieces
from tokenflow_sgl.lab.profiles.tables import DecodeTable, PrefillTable

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
