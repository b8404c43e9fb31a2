"""The hub: realtime publish and subscribe over WebSocket (specification 002)."""
