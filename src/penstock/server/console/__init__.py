"""The console: the pages at `/`, the JSON that they show, and the connection that keeps them up to date."""

from penstock.server.console.console import Console

__all__ = ["Console"]
