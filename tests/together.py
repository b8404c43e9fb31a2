"""Scenes that mostly wait for time to pass, played at the same time in one event loop: all take as long as the longest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

Scene = Callable[[], Coroutine[Any, Any, None]]


def play_together(scenes: Mapping[str, Scene], subtests: pytest.Subtests) -> None:
    """Play them all, whatever fails, and report each as a subtest."""

    async def play() -> list[BaseException | None]:
        return await asyncio.gather(*(scene() for scene in scenes.values()), return_exceptions=True)

    for name, failure in zip(scenes, asyncio.run(play()), strict=True):
        with subtests.test(name):
            if failure is not None:
                raise failure
