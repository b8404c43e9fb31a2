"""Metrics and their samples, and the Prometheus text format (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric: its name, its kind, its meaning, and the labels of its samples. Create each one once."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


class Histogram(NamedTuple):
    """Counts by upper bound (not cumulative; the last is for values above all bounds), and the sum of the values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Sample(NamedTuple):
    """A metric's value for one set of label values, in the order of the metric's labels."""

    metric: Metric
    values: tuple[str, ...]
    value: float | Histogram


Collector = Callable[[], Iterable[Sample]]
"""Returns the current samples. Called in a separate thread: it may block and take locks, but must be thread-safe."""


def exposition(samples: Iterable[Sample]) -> Iterator[str]:
    """The text of all samples, by metric: the format requires those of a metric together, so all are collected first."""
    families: dict[Metric, list[str]] = {}
    for sample in samples:
        lines = families.get(sample.metric)
        if lines is None:
            lines = families[sample.metric] = []
        if isinstance(sample.value, Histogram):
            lines += _histogram(sample.metric, sample.values, sample.value)
        else:
            lines.append(f"{sample.metric.name}{_labels(sample.metric.labels, sample.values)} {_number(sample.value)}")
    for metric, lines in families.items():
        head = f"# HELP {metric.name} {_escaped(metric.help, quote=False)}\n# TYPE {metric.name} {metric.kind}\n"
        yield head + "\n".join([*lines, ""])


def _histogram(metric: Metric, values: tuple[str, ...], histogram: Histogram) -> list[str]:
    lines, seen = [], 0
    names = (*metric.labels, "le")
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        seen += count
        lines.append(f"{metric.name}_bucket{_labels(names, (*values, _number(bound)))} {seen}")
    labels = _labels(metric.labels, values)
    return [*lines, f"{metric.name}_sum{labels} {_number(histogram.total)}", f"{metric.name}_count{labels} {seen}"]


@lru_cache(maxsize=4096)  # a queue has the same labels in all its metrics, which follow each other
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value, quote=True)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str, *, quote: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return repr(value) if isinstance(value, float) and not value.is_integer() else str(int(value))
