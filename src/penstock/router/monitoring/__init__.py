"""The router's monitoring API: health, numbers, warnings, messages in flight, and the dashboard over them."""
