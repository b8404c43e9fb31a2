"""The server side of the native protocol, which Penstock's own client speaks. See `penstock.wire.frames` for its frames."""

from penstock.native.port import NativeLimits, NativeServer

__all__ = ["NativeLimits", "NativeServer"]
