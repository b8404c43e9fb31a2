"""The hub's door: WebSocket at `/ws`, its AsyncAPI document and its numbers."""
