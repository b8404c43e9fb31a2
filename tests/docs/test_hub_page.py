"""The guide to the hub is true: its commands and programs run, its numbers, limits, claims and calls are those of the code."""

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client import HubClient
from penstock.config import Settings
from penstock.config.settings import OPTIONS
from penstock.durations import SECOND
from penstock.hub.broker import stored_message
from penstock.hub.client.core import reconnection
from penstock.hub.client.messages import MAX_WAITING, HubMessage, Presence
from penstock.hub.core import publishing, registry
from penstock.hub.core.connection import TOKEN_GRACE
from penstock.hub.core.discovery import MAX_PATTERN
from penstock.hub.core.hub import SEARCHED_FOR_ONE
from penstock.hub.core.identity import LEEWAY, Claims
from penstock.hub.core.names import MAX_ADDRESS, MAX_PATTERN_LEVELS, covers
from penstock.hub.core.registration import MAX_CLAIMED
from penstock.hub.core.registry import MAX_CAPABILITIES, MAX_CAPABILITY
from penstock.hub.core.rules import DEFAULT_TTL, MAX_DEPTH, MAX_TOPIC, MAX_TTL, MIN_TTL, READ_UNIT, HubRules
from penstock.hub.jwks import FRESH
from penstock.hub.server import socket
from penstock.hub.server.frames import READ_LIMIT_FACTOR
from penstock.hub.server.heartbeat import PERIOD_SECONDS
from penstock.testing.server import LocalServer
from tests.docs.pages import ROOT, blocks, table_rows
from tests.docs.walk import SETTINGS, Walk
from tests.integration.hub.chromium import CHROMIUM, Browser, chromium

GUIDE = (ROOT / "docs" / "hub.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "hub-protocol.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return re.split(r"^## ", GUIDE.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]


def flat(text: str) -> str:
    """A page without its line ends, so that a sentence is found wherever it is broken."""
    return re.sub(r"\s+", " ", text)


def parameter_default(call: Callable[..., object], name: str) -> Any:
    return inspect.signature(call).parameters[name].default


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


def test_the_numbers_in_sentences_are_those_of_the_code(subtests: pytest.Subtests) -> None:
    rules, seconds = HubRules(), 1 / SECOND
    of_guide = [
        (rules.max_recovered, "up to {:,} messages"),
        (rules.max_unacked, "At most {:,} messages are out"),
        (rules.max_outbox_bytes // 2048, "({} KiB, of which"),
        (rules.max_outbox_bytes // 2**20, "is bounded: {} MiB"),
        (rules.max_outbox_messages, "or {:,} messages"),
        (rules.stall * seconds, "for {:g} seconds, is closed"),
        (socket.TAKE_SECONDS, "takes nothing for {:g} seconds"),
        (MAX_WAITING, "`max_waiting` messages ({:,})"),
        (rules.flood, "continues for {:,} messages"),
        (SEARCHED_FOR_ONE, "for every {} of them"),
        (READ_UNIT // 1024, "counts as {} KiB more"),
        (MAX_DEPTH, "nested {} deep"),
        (rules.connect_timeout * seconds, "says nothing within {:g} seconds"),
        (LEEWAY * seconds, "differ by {:g} seconds"),
        (LEEWAY * seconds, "less than {:g} seconds ago"),
        (TOKEN_GRACE * seconds, "has {:g} seconds to say"),
        (PERIOD_SECONDS, "longer than {:g} seconds of silence"),
        (rules.max_message_bytes // 2**20, "a frame is {} MiB"),
        (MAX_TOPIC, "1 to {} letters"),
        (reconnection.MAXIMUM * seconds, "1, 2, 4 … {:g} seconds"),
        (parameter_default(HubClient, "timeout"), "`timeout` seconds ({:g})"),
        (parameter_default(Settings, "hub_durable_expiry") / 86_400, "for {:g} days"),
        (parameter_default(Settings, "hub_jwt_max_age") / 3_600, "{:g} hours ago at most"),
    ]
    of_protocol = [
        (rules.max_message_bytes // 2**20, "have {} MiB"),
        (rules.connect_timeout * seconds, "`hub:connect` within {:g} seconds"),
        (rules.idle * seconds, "says nothing for {:g} seconds"),
        (rules.max_recovered, "more than {:,} messages were missed"),
        (rules.max_remembered, "last {:,} publishes"),
        (MAX_DEPTH, "nested {} deep"),
        (MAX_CLAIMED, "`from` (up to {} characters)"),
        (MAX_ADDRESS, "digits and `-`, {} characters at most"),
        (MAX_TOPIC, "1 to {} letters"),
        (MAX_PATTERN_LEVELS, "with wildcards has {} levels at most"),
        (MAX_PATTERN, "{} characters at most: no pattern"),
        (MAX_CAPABILITIES, "1 to {} words"),
        (MAX_CAPABILITY, "of {} characters at most"),
        (registry.MAX_METADATA // 1024, "others may see of it, {} KiB at most"),
        (publishing.MAX_METADATA // 1024, "of a direct message: an object, {} KiB at most"),
        (MIN_TTL // 1000, "renewed, {:,} to"),
        (MAX_TTL // 1000, "to {:,}; "),
        (DEFAULT_TTL // 1000, "; {:,} if not said"),
    ]
    for name, page, numbers in (("guide", flat(GUIDE), of_guide), ("protocol", flat(PROTOCOL), of_protocol)):
        for number, text in numbers:
            with subtests.test(page=name, text=text):
                assert text.format(number) in page


def test_the_numbers_that_are_written_as_words_are_those_of_the_code(subtests: pytest.Subtests) -> None:
    for page, text, is_true in (
        (GUIDE, "pattern of ten levels", MAX_PATTERN_LEVELS == 10),
        (GUIDE, "four times as much", READ_LIMIT_FACTOR == 4),
        (GUIDE, "lasts five minutes", DEFAULT_TTL == 300 * SECOND),
        (GUIDE, "(1 second to 1 hour)", (MIN_TTL, MAX_TTL) == (SECOND, 3_600 * SECOND)),
        (GUIDE, "not all of it within a minute", socket.LEAVE_SECONDS == 60),
        (GUIDE, "asked for every five minutes", FRESH == 300 * SECOND),
        (PROTOCOL, "four times as large closes", READ_LIMIT_FACTOR == 4),
        (PROTOCOL, "session, within a minute", HubRules().remember == 60 * SECOND),
    ):
        with subtests.test(text=text):
            assert text in flat(page)
            assert is_true


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
