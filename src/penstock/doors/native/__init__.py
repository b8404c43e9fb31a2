"""The native door: Penstock's own protocol, for its own client. See `penstock.api.frames` for what is said."""

from penstock.doors.native.door import NativeDoor, NativeLimits

__all__ = ["NativeDoor", "NativeLimits"]
