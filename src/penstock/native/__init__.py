"""The native port: Penstock's own protocol, for its own client. See `penstock.wire.frames` for what is said."""

from penstock.native.port import NativeLimits, NativeServer

__all__ = ["NativeLimits", "NativeServer"]
