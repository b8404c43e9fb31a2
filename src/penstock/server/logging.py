"""The format of a server's log: one line for each event, as text or JSON. It never contains payloads or tokens."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec


class JsonFormatter(logging.Formatter):
    """One JSON object for each line. Programs that read it may be anywhere, so times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up_logs(level: str, form: str) -> None:
    """Send the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # It warns about every handshake with an unknown subprotocol: any client could fill the log.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
