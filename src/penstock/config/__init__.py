"""What can be set, where it is read from, and which source wins."""

from penstock.config.load import find_file, load
from penstock.config.settings import OPTIONS, Option, Settings

__all__ = ["OPTIONS", "Option", "Settings", "find_file", "load"]
