"""The router's monitoring API: health, metrics, warnings, messages in flight, and the dashboard."""
