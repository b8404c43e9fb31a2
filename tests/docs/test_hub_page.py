"""The guide to the hub is true: its commands and programs run, its numbers, limits, claims and calls are those of the code."""

import asyncio
import inspect
import re
from pathlib import Path

import msgspec
import pytest

from penstock.client import HubClient
from penstock.client.hub_message import HubMessage, Presence
from penstock.config.settings import OPTIONS
from penstock.doors.hub.door import BEYOND
from penstock.doors.hub.pulse import PERIOD_SECONDS
from penstock.durations import SECOND
from penstock.hub.core.claims import LEEWAY, Claims
from penstock.hub.core.connecting import TOKEN_GRACE
from penstock.hub.core.pattern_syntax import MAX_PATTERN
from penstock.hub.core.registry import MAX_CAPABILITIES, MAX_CAPABILITY, MAX_METADATA
from penstock.hub.core.rules import DEFAULT_TTL, MAX_DEPTH, MAX_TTL, MIN_TTL, HubRules
from penstock.hub.core.topic import MAX_PATTERN_LEVELS, covers
from penstock.hub_host import stored
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


@pytest.mark.slow
def test_the_hubs_page_does_what_it_shows(tmp_path: Path) -> None:
    with Walk(tmp_path, settings={**SETTINGS, "PENSTOCK_SERVER": "http://127.0.0.1:8085"}) as walk:
        walk.follow(GUIDE.replace("pip install", "true pip install"))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_the_pages_script_shows_messages_in_a_browser() -> None:
    [script] = [block.text for block in blocks(GUIDE) if block.language == "javascript"]

    async def main(devtools: str, url: str) -> object:
        joined = asyncio.Event()

        def seen(news: Presence) -> None:
            if "@(browser/page-1)" in news.actors:
                joined.set()

        async with Browser(devtools) as browser, HubClient(url) as hub, hub.subscribe("orders/#", on_presence=seen):
            page = await browser.open(f"{url}/health")
            moved = script.replace("ws://127.0.0.1:8085", url.replace("http", "ws"))
            await page.run(f"const shown = []; const show = (topic, data) => shown.push([topic, data]);\n{moved}\ntrue")
            await asyncio.wait_for(joined.wait(), 30)
            await hub.publish("orders/eu", {"id": 1})
            return await page.until("shown[0]")

    with chromium() as devtools, LocalServer() as server:
        assert asyncio.run(main(devtools, server.url)) == ["orders/eu", {"id": 1}]


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


@pytest.mark.parametrize(
    ("number", "guide", "protocol"),
    [
        (RULES.max_recovered, "up to {:,} messages", "more than {:,} messages were missed"),
        (RULES.max_unacked, "At most {:,} messages are out", None),
        (RULES.max_outbox_messages, "or {:,} messages", None),
        (RULES.stall // SECOND, "for {} seconds, is closed", None),
        (RULES.flood, "goes on for {:,} messages", None),
        (RULES.connect_timeout // SECOND, "within {} seconds is closed", "within {} seconds"),
        (RULES.idle // SECOND, None, "says nothing for {} seconds"),
        (MAX_DEPTH, "nested {} deep", "nested {} deep"),
        (MAX_PATTERN_LEVELS, None, "with wildcards has {} levels at most"),
        (MAX_PATTERN, None, "{} characters at most: no pattern"),
        (MAX_CAPABILITIES, None, "1 to {} words"),
        (MAX_CAPABILITY, None, "of {} characters at most"),
        (MAX_METADATA // 1024, None, "{} KiB at most"),
        (TOKEN_GRACE // SECOND, "has {} seconds to say", None),
        (LEEWAY // SECOND, "differ by {} seconds", None),
        (round(PERIOD_SECONDS), "longer than {} seconds of silence", None),
        (MIN_TTL // 1000, None, "{:,} to"),
        (MAX_TTL // 1000, None, "to {:,}; "),
        (DEFAULT_TTL // 1000, None, "; {:,} if not said"),
    ],
)
def test_numbers_in_words_are_those_of_the_code(number: int, guide: str | None, protocol: str | None) -> None:
    for page, words in ((GUIDE, guide), (PROTOCOL, protocol)):
        assert words is None or words.format(number) in flat(page)


def test_numbers_that_are_written_out_are_those_of_the_code() -> None:
    written = {
        "pattern of ten levels": MAX_PATTERN_LEVELS == 10,
        "four times as much": BEYOND == 4,
        "lasts five minutes": DEFAULT_TTL == 300 * SECOND,
        "(1 second to 1 hour)": (MIN_TTL, MAX_TTL) == (SECOND, 3_600 * SECOND),
    }
    of_protocol = {
        "within a minute is answered again": RULES.remember == 60 * SECOND,
        "four times as large closes": BEYOND == 4,
    }

    assert [words for words, is_true in written.items() if not is_true or words not in flat(GUIDE)] == []
    assert [words for words, is_true in of_protocol.items() if not is_true or words not in flat(PROTOCOL)] == []


@pytest.mark.parametrize("page", [GUIDE, PROTOCOL], ids=["guide", "protocol"])
def test_patterns_cover_what_the_tables_say(page: str) -> None:
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
    known = [stored.TOPIC, stored.TYPE, stored.SENDER, stored.ID, stored.EXPIRES]
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


def test_programs_begin_with_their_name() -> None:
    assert all(block.file for block in blocks(GUIDE) if block.language == "python")
