"""The settings, where they are read from, and their precedence."""

from penstock.config.load import find_file, load
from penstock.config.settings import OPTIONS, Option, Settings

__all__ = ["OPTIONS", "Option", "Settings", "find_file", "load"]
