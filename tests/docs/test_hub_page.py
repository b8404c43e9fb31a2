"""The guide to the hub is true: its commands and programs run, its limits, claims and calls are those of the code."""

import asyncio
import inspect
import re
from pathlib import Path

import msgspec
import pytest

from penstock.client import HubClient
from penstock.config.settings import OPTIONS
from penstock.hub.broker import stored_message
from penstock.hub.client.messages import HubMessage, Presence
from penstock.hub.core.identity import Claims
from penstock.hub.core.names import covers
from penstock.hub.core.rules import HubRules
from penstock.testing.server import LocalServer
from tests.docs.pages import ROOT, blocks, table_rows
from tests.docs.walk import SETTINGS, Walk
from tests.integration.hub.chromium import CHROMIUM, Browser, chromium

GUIDE = (ROOT / "docs" / "hub.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "hub-protocol.md").read_text(encoding="utf-8")
RULES = HubRules()


def section(heading: str) -> str:
    return re.split(r"^## ", GUIDE.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]


def flat(text: str) -> str:
    """A page without its line ends, so that a sentence is found wherever it is broken."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.long
def test_the_hubs_page_does_what_it_shows(tmp_path: Path) -> None:
    with Walk(tmp_path, settings={**SETTINGS, "PENSTOCK_SERVER": "http://127.0.0.1:8085"}) as walk:
        walk.follow(GUIDE.replace("pip install", "true pip install"))


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_pages_scripts_show_messages_in_a_browser(subtests: pytest.Subtests) -> None:
    anonymous, named = [block.text for block in blocks(GUIDE) if "new WebSocket(" in block.text]

    async def main(devtools: str, url: str, script: str, actor: str) -> object:
        joined = asyncio.Event()

        def seen(news: Presence) -> None:
            if any(address.startswith(actor) for address in news.actors):
                joined.set()

        async with Browser(devtools) as browser, HubClient(url) as hub, hub.subscribe("orders/#", on_presence=seen):
            page = await browser.open(f"{url}/health")
            moved = script.replace("ws://127.0.0.1:8085", url.replace("http", "ws"))
            await page.run(f"const shown = []; const show = (topic, data) => shown.push([topic, data]);\n{moved}\ntrue")
            await asyncio.wait_for(joined.wait(), 30)
            await hub.publish("orders/eu", {"id": 1})
            return await page.until("shown[0]")

    with chromium() as devtools, LocalServer() as server:
        for script, actor in ((anonymous, "@(anonymous/"), (named, "@(browser/page-1)")):
            with subtests.test(actor):
                assert asyncio.run(main(devtools, server.url, script, actor)) == ["orders/eu", {"id": 1}]


def test_the_limits_are_the_settings_with_their_defaults() -> None:
    shown = {option.name: option.shown_default for option in OPTIONS}
    rows = [row for row in table_rows(section("Limits")) if row[0].startswith("`")]
    stated = {
        name: default
        for row in rows
        for name, default in zip(re.findall(r"`(\w+)`", row[0]), re.findall(r"`([^`]+)`", row[1]), strict=True)
    }

    assert stated == {name: shown[name] for name in stated}
    assert {name for name in shown if name.startswith("hub_max_")} <= set(stated)


def test_every_setting_of_the_hub_is_on_the_page() -> None:
    names = [option.name for option in OPTIONS if option.name.startswith("hub_")]
    spoken = flat(GUIDE).replace("--hub-history", "hub_history").replace("--hub-bind", "hub_bind")
    assert [name for name in names if name not in spoken and name != "hub_heartbeat"] == []


def test_patterns_cover_what_the_tables_say() -> None:
    for page in (GUIDE, PROTOCOL):
        start = page.index("| pattern | covers |")
        rows = [*table_rows(page[start : page.index("\n\n", start)])][1:]
        assert len(rows) >= 3
        for row in rows:
            pattern, covered, others = (re.findall(r"`([^`]+)`", cell) for cell in row)
            assert all(covers(pattern[0], topic) for topic in covered)
            assert not any(covers(pattern[0], topic) for topic in others)


def test_every_claim_is_on_the_page_and_no_other() -> None:
    start = GUIDE.index("| claim |")
    rows = [*table_rows(GUIDE[start : GUIDE.index("\n\n", start)])][1:]
    named = {claim for row in rows for claim in re.findall(r"`(\w+)`", row[0])}
    assert named == {field.encode_name for field in msgspec.structs.fields(Claims)} - {"capabilities"}


def test_every_attribute_is_on_the_page() -> None:
    start = GUIDE.index("| attribute |")
    rows = [*table_rows(GUIDE[start : GUIDE.index("\n\n", start)])][1:]
    known = [stored_message.TOPIC, stored_message.TYPE, stored_message.SENDER, stored_message.ID, stored_message.EXPIRES]
    assert [row[0].strip("`") for row in rows] == known


def test_calls_of_the_client_are_shown_with_the_arguments_they_take() -> None:
    shown = re.findall(r"`(?:await )?(?:hub\.)?(\w+)\(([^`]*)\)`", section("From a program"))
    wrong, seen = [], set()
    for name, inside in shown:
        call = HubClient if name == "HubClient" else getattr(HubClient, name, None)
        if call is None:
            continue
        seen.add(name)
        parameters = inspect.signature(call).parameters
        words = [word.strip().rstrip("=").lstrip("*") for word in inside.split(",") if word.strip()]
        wrong += [f"{name}: {word}" for word in words if word not in parameters]
        if name in {"HubClient", "subscribe", "publish", "send", "broadcast"}:
            wrong += [f"{name}: {word} is not shown" for word in parameters if word != "self" and word not in words]
    public = {name for name, value in inspect.getmembers(HubClient, inspect.isfunction) if not name.startswith("_")}
    internal = {"open", "close", "attach", "detach", "taken", "take", "settle", "asked", "greeted", "refused", "broke", "failed"}

    assert wrong == []
    assert public - internal - seen == set()


def test_every_field_of_a_message_is_on_the_page() -> None:
    words = set(re.findall(r"`(\w+)`", section("From a program")))
    fields = {name for name in HubMessage.__dataclass_fields__ if not name.startswith("_")}
    assert fields - words - {"raw"} == set()
