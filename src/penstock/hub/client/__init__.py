"""The client of the hub: publish and subscribe over a WebSocket that reconnects by itself."""
