"""A strict reader of Prometheus' text format: what a scraper would only grumble about is an error here."""

import re
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (\S+)")
_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_ESCAPED = re.compile(r"\\(.)")


class BadMetrics(Exception):
    """A text that is not what the format wants."""


@dataclass
class Family:
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """The families of a text by name, each with its samples by name and sorted labels."""
    families: dict[str, Family] = {}
    current = ""
    if text and not text.endswith("\n"):
        raise BadMetrics("the last line has no end")
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            if current in families or kind not in {"counter", "gauge", "histogram"}:
                raise BadMetrics(line)
            families[current] = Family(kind)
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None or not current:
            raise BadMetrics(line)
        _add(families[current], current, match, line)
    for name, family in families.items():
        _check(name, family)
    return families


def _add(family: Family, name: str, match: re.Match[str], line: str) -> None:
    allowed = {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if family.kind == "histogram" else {name}
    labels = tuple(
        sorted(
            (key, _ESCAPED.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), value))
            for key, value in _PAIR.findall(match[2] or "")
        )
    )
    key = (match[1], labels)
    if match[1] not in allowed or key in family.samples or len(dict(labels)) != len(labels):
        raise BadMetrics(line)
    try:
        family.samples[key] = float(match[3])
    except ValueError:
        raise BadMetrics(line) from None


def _check(name: str, family: Family) -> None:
    if not family.samples:
        raise BadMetrics(f"{name} has no samples")
    if family.kind == "counter" and (not name.endswith("_total") or min(family.samples.values()) < 0):
        raise BadMetrics(f"{name} is no counter")
    if family.kind == "histogram":
        series: dict[Labels, list[tuple[float, float]]] = {}
        for (sample, labels), value in family.samples.items():
            if sample == f"{name}_bucket":
                rest = tuple(pair for pair in labels if pair[0] != "le")
                series.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        for rest, buckets in series.items():
            counts = [count for _, count in sorted(buckets)]
            whole = family.samples.get((f"{name}_count", rest))
            if counts != sorted(counts) or max(buckets)[0] != float("inf") or whole != counts[-1]:
                raise BadMetrics(f"{name} {rest} does not add up")
            if (f"{name}_sum", rest) not in family.samples:
                raise BadMetrics(f"{name} {rest} has no sum")
