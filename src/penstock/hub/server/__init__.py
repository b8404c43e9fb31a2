"""The hub's API: WebSocket at `/ws`, its AsyncAPI document and its metrics."""
