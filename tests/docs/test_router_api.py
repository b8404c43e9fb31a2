"""The page of the router's API names every route, number, category and field, and none that is not there."""

import re

import msgspec

from penstock.router.core.warnings import Category
from penstock.router.monitoring import health, messages, stats
from penstock.router.monitoring import pools as parts
from penstock.router.monitoring import warnings as warned
from penstock.router.monitoring.api import router_routes
from penstock.router.monitoring.metrics import router_collector
from tests.docs.pages import ROOT, table_rows
from tests.integration.router.small_router import SmallRouter

PAGE = (ROOT / "docs" / "router-api.md").read_text(encoding="utf-8")
SHAPES: list[type[msgspec.Struct]] = [
    *(health.InfrastructureHealth, health.Probe, health.MonitoringHealth, health.Details),
    *(stats.PoolStats, stats.QueueStats),
    *(messages.FlightMessage, messages.CheckResult, messages.Detail, messages.ForcedAckResult, messages.Mediating),
    *(parts.Breaker, parts.PoolChanged, parts.Consumer, parts.Consumers, parts.Standby, parts.TrafficStatus, parts.Reloaded),
    *(messages.PublishMessageRequest, messages.Published),
    warned.WarningView,
]


def test_every_route_is_on_the_page_and_none_is_made_up() -> None:
    routes = router_routes(SmallRouter(), version="1", is_development=True)
    served = {f"{route.method} {route.path}" for route in routes}

    assert set(re.findall(r"`((?:GET|POST|PUT|DELETE|PATCH) /[^`?\s]*)`", PAGE)) == served


def test_every_number_is_on_the_page_as_it_is() -> None:
    metrics = {sample.metric for sample in router_collector(SmallRouter())()}
    rows = {row[0]: row[1:] for row in table_rows(PAGE) if row[0].startswith(("`fc_", "`flowcatalyst_"))}

    assert rows == {f"`{metric.name}`": [", ".join(f"`{label}`" for label in metric.labels), metric.kind] for metric in metrics}


def test_every_category_is_on_the_page() -> None:
    assert [category for category in Category if f"`{category}`" not in PAGE] == []


def test_every_field_is_on_the_page() -> None:
    words = set(re.findall(r"\w+", PAGE))
    fields = {field.encode_name for shape in SHAPES for field in msgspec.structs.fields(shape)}

    assert sorted(field for field in fields if re.sub(r"(5|30)min$", "", field) not in words) == []
