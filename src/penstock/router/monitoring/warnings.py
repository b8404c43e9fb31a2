"""Warnings over HTTP, under `/monitoring/warnings` and, with counts in the answers, under `/warnings`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.http.refusal import Refusal
from penstock.http.request import Request, json_response
from penstock.http.routes import Parameter, Route
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import WarningRecord
from penstock.router.monitoring.requests import changing, query, reading
from penstock.router.monitoring.view import RouterView

Hours = Annotated[float, Meta(ge=0, le=1_000_000)]
_SEVERITIES = {**{severity.value: severity for severity in Severity}, "WARNING": Severity.WARN}


class WarningView(msgspec.Struct):
    """A warning. It was recorded `count` times, the last time at `timestamp`."""

    id: str
    category: str
    severity: Severity
    message: str
    timestamp: datetime
    source: str
    acknowledged: bool
    count: int


class Success(msgspec.Struct):
    """Done."""

    status: Literal["success"] = "success"


class Acknowledged(msgspec.Struct):
    """A warning was acknowledged."""

    acknowledged: bool = True


class AllAcknowledged(msgspec.Struct):
    """How many warnings were acknowledged."""

    acknowledged: int


class Cleared(msgspec.Struct):
    """How many warnings were forgotten."""

    cleared: int


class ClearOldQuery(msgspec.Struct):
    """The age of the warnings to forget."""

    hours: Hours = 24


class ListQuery(msgspec.Struct):
    """A filter for warnings; `acknowledged=false` leaves out those that were acknowledged."""

    severity: str | None = None
    category: str | None = None
    acknowledged: bool | None = None


class WarningRoutes:
    """Routes for warnings."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        shown = list[WarningView]
        severity = (Parameter("severity", "INFO, WARN, ERROR or CRITICAL.", where="path"),)
        one = (Parameter("id", "The warning.", where="path"),)
        hours = (Parameter("hours", "The age in hours.", Hours),)
        which = (
            Parameter("severity", "Only warnings of this severity.", str),
            Parameter("category", "Only warnings of this category.", str),
            Parameter("acknowledged", "Only acknowledged warnings (true), or only the others (false).", bool),
        )
        routes = []
        for prefix in ("/monitoring/warnings", "/warnings"):
            routes += [
                reading(prefix, self.list, "Warnings, newest first", shown, parameters=which),
                reading(f"{prefix}/unacknowledged", self.unacknowledged, "Unacknowledged warnings", shown),
                reading(
                    f"{prefix}/severity/{{severity}}", self.by_severity, "Warnings of a severity", shown, parameters=severity
                ),
            ]
        return [
            *routes,
            reading("/warnings/critical", self.critical, "Critical warnings", shown),
            changing(
                "POST",
                "/monitoring/warnings/{id}/acknowledge",
                self.acknowledge,
                "Acknowledge a warning",
                Success,
                parameters=one,
            ),
            changing(
                "POST", "/warnings/{id}/acknowledge", self.acknowledged, "Acknowledge a warning", Acknowledged, parameters=one
            ),
            changing("POST", "/warnings/acknowledge-all", self.acknowledge_all, "Acknowledge every warning", AllAcknowledged),
            changing("DELETE", "/monitoring/warnings", self.clear, "Forget every warning", Success),
            changing("DELETE", "/warnings", self.cleared, "Forget every warning", Cleared),
            changing("DELETE", "/monitoring/warnings/old", self.clear_old, "Forget old warnings", Success, parameters=hours),
            changing("DELETE", "/warnings/old", self.cleared_old, "Forget old warnings", Cleared, parameters=hours),
        ]

    async def list(self, request: Request) -> web.StreamResponse:
        asked = query(request, ListQuery)
        found = self._view.warnings.all(self._view.clock.now())
        if asked.severity is not None:
            severity = _severity(asked.severity)
            found = [warning for warning in found if warning.severity is severity]
        if asked.category is not None:
            category = asked.category.upper()
            found = [warning for warning in found if warning.category == category]
        if asked.acknowledged is not None:
            found = [warning for warning in found if warning.is_acknowledged is asked.acknowledged]
        return _listed(found)

    async def unacknowledged(self, _: Request) -> web.StreamResponse:
        return _listed(self._view.warnings.unacknowledged(self._view.clock.now()))

    async def by_severity(self, request: Request) -> web.StreamResponse:
        severity = _severity(request.match_info["severity"])
        return _listed(self._view.warnings.by_severity(severity, self._view.clock.now()))

    async def critical(self, _: Request) -> web.StreamResponse:
        """Warnings of the highest severity."""
        return _listed(self._view.warnings.by_severity(Severity.CRITICAL, self._view.clock.now()))

    async def acknowledge(self, request: Request) -> web.StreamResponse:
        self._acknowledge(request)
        return json_response(Success())

    async def acknowledged(self, request: Request) -> web.StreamResponse:
        self._acknowledge(request)
        return json_response(Acknowledged())

    async def acknowledge_all(self, _: Request) -> web.StreamResponse:
        return json_response(AllAcknowledged(self._view.warnings.acknowledge_all()))

    async def clear(self, _: Request) -> web.StreamResponse:
        self._view.warnings.clear()
        return json_response(Success())

    async def cleared(self, _: Request) -> web.StreamResponse:
        return json_response(Cleared(self._view.warnings.clear()))

    async def clear_old(self, request: Request) -> web.StreamResponse:
        self._clear_old(request)
        return json_response(Success())

    async def cleared_old(self, request: Request) -> web.StreamResponse:
        return json_response(Cleared(self._clear_old(request)))

    def _acknowledge(self, request: Request) -> None:
        if not self._view.warnings.acknowledge(request.match_info["id"]):
            raise Refusal(404, "Warning not found", reason="warning_not_found", hint="it may have expired, or was forgotten")

    def _clear_old(self, request: Request) -> int:
        return self._view.warnings.clear_older(query(request, ClearOldQuery).hours, self._view.clock.now())


def _severity(text: str) -> Severity:
    found = _SEVERITIES.get(text.upper())
    if found is None:
        raise InvalidArgument.of("severity", text, "INFO, WARN, ERROR or CRITICAL")
    return found


def _listed(warnings: Iterable[WarningRecord]) -> web.Response:
    return json_response([_shown(warning) for warning in warnings])


def _shown(warning: WarningRecord) -> WarningView:
    return WarningView(
        warning.warning_id,
        warning.category,
        warning.severity,
        warning.message,
        to_datetime(warning.at),
        warning.source,
        warning.is_acknowledged,
        warning.count,
    )
