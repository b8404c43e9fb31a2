"""The native door: Penstock's own protocol, for its own client. See `penstock.wire.frames` for what is said."""

from penstock.native.port import NativeDoor, NativeLimits

__all__ = ["NativeDoor", "NativeLimits"]
