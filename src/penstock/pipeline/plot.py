"""Metrics as one self-contained HTML page: rates and 95th percentiles over time for each stream, in light and dark mode.

`page` renders rows with the columns of METRICS; it reads no clock and no file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from math import floor, log10
from pathlib import Path
from typing import Any

MOST_STREAMS = 8
_WIDTH, _HEIGHT = 520, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 24
_DOTS = 90
"""With more windows than this, dots would overlap."""

_RATES = {"published": "published_per_second", "delivered": "delivered_per_second", "acked": "acked_per_second"}
_TIMES = {"wait": "wait_p95_ms", "processing": "processing_p95_ms"}
_COLUMNS = ("subscription", "consumer", "delivered/s", "acked/s", "wait p95", "processing p95", "redelivered", "dead", "errors")

_STYLE = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #fff; --ink: #1b1b19; --soft: #62625c; --line: #e3e2dc;
  --published: #2a6fdb; --delivered: #0f9d84; --acked: #8a5cd6; --wait: #c46a00; --processing: #b8336a; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --card: #20201e; --ink: #f1f0ea; --soft: #a3a29a; --line: #383733;
  --published: #6aa5ff; --delivered: #3fcfae; --acked: #b796ff; --wait: #ffa84a; --processing: #ff7fae; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px 20px 40px; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 16px; margin: 0 0 12px; overflow-wrap: anywhere; }
p { color: var(--soft); margin: 4px 0 20px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; margin: 0 0 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 12px 28px; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 13px; color: var(--soft); display: flex; flex-wrap: wrap; gap: 2px 14px; }
figcaption b { color: var(--ink); font-weight: 600; }
i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 5px; vertical-align: middle; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.published { stroke-width: 6; opacity: .4; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; margin-top: 14px; font-size: 13px; }
th, td { text-align: right; padding: 4px 8px; border-top: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; } th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
"""

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The windows that all charts share."""

    starts: tuple[int, ...]
    """Seconds since 1970."""
    seconds: int

    @classmethod
    def around(cls, rows: Sequence[Mapping[str, Any]]) -> _Frame:
        seconds = _second(rows[0]["window_end"]) - _second(rows[0]["window_start"])
        found = [_second(row["window_start"]) for row in rows]
        return cls(tuple(range(min(found), max(found) + 1, max(seconds, 1))), seconds)

    def x(self, index: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index / (len(self.starts) - 1) if len(self.starts) > 1 else 0.5)


def write_html(rows: Rows, path: str | Path) -> Path:
    """Write the page of some metrics to a file; returns its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(rows), encoding="utf-8")
    return target


def page(rows: Rows, *, title: str = "Penstock: metrics") -> str:
    """The page. Rows are mappings (`row.asDict()` in Spark); a time without a zone is local time, as Spark returns it.

    Charts show whole streams: rates are summed over subscriptions and consumers, percentiles are those of the slowest.
    """
    streams: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        streams[row["stream"]].append(row)
    if not streams:
        return _document(title, "<p>There is nothing to show yet: no window is over.</p>")
    frame = _Frame.around([row for found in streams.values() for row in found])
    busiest = sorted(streams, key=lambda stream: (-sum(row["published"] + row["delivered"] for row in streams[stream]), stream))
    shown = busiest[:MOST_STREAMS]
    left_out = f"; {len(busiest) - len(shown)} streams with less traffic are left out" if len(busiest) > len(shown) else ""
    span = f"{_clock(frame.starts[0], True)} to {_clock(frame.starts[-1] + frame.seconds, True)} UTC"
    words = f"<p>{span}, windows of {_span(frame.seconds)}{left_out}</p>"
    return _document(title, words + "".join(_section(stream, streams[stream], frame) for stream in shown))


def _document(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _section(stream: str, rows: Sequence[Mapping[str, Any]], frame: _Frame) -> str:
    windows: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        windows[_second(row["window_start"])].append(row)
    # In a window without rows nothing happened: its rates are 0, and it has no times.
    rates = {
        name: [float(sum(row[column] for row in windows.get(start, ()))) for start in frame.starts]
        for name, column in _RATES.items()
    }
    times = {
        name: [
            max((row[column] for row in windows.get(start, ()) if row[column] is not None), default=None)
            for start in frame.starts
        ]
        for name, column in _TIMES.items()
    }
    charts = _chart("per second", rates, frame, _number) + _chart("95th percentile", times, frame, _milliseconds)
    return f'<section><h2>{escape(stream)}</h2><div class="pair">{charts}</div>{_table(windows)}</section>'


def _chart(caption: str, curves: Mapping[str, Sequence[float | None]], frame: _Frame, text: Any) -> str:
    top = _ceiling(max((value for values in curves.values() for value in values if value is not None), default=0.0))
    legend = "".join(f'<span><i style="background:var(--{name})"></i>{name}</span>' for name in curves)
    parts = [_grid(top, frame, text)]
    parts += [_curve(name, values, top, frame, text) for name, values in curves.items()]
    label = f"{caption}: {', '.join(curves)}"
    return (
        f'<figure><figcaption><b>{caption}</b>{legend}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def _grid(top: float, frame: _Frame, text: Any) -> str:
    parts = []
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text(value)}</text>')
    last = len(frame.starts) - 1
    marks = sorted({0, last // 2, last})
    for index in marks:
        anchor = "middle" if len(marks) == 1 or 0 < index < last else ("start" if index == 0 else "end")
        clock = _clock(frame.starts[index])
        parts.append(f'<text x="{frame.x(index):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{clock}</text>')
    return "".join(parts)


def _curve(name: str, values: Sequence[float | None], top: float, frame: _Frame, text: Any) -> str:
    path, dots, is_drawing = [], [], False
    lonely = [
        value is not None
        and (index == 0 or values[index - 1] is None)
        and (index + 1 == len(values) or values[index + 1] is None)
        for index, value in enumerate(values)
    ]
    for index, value in enumerate(values):
        if value is None:
            is_drawing = False
            continue
        x, y = frame.x(index), _y(value, top)
        path.append(f"{'L' if is_drawing else 'M'}{x:.1f} {y:.1f}")
        is_drawing = True
        if len(values) <= _DOTS or lonely[index]:
            hint = f"{_clock(frame.starts[index])}: {name} {text(value)}"
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="var(--{name})"><title>{hint}</title></circle>')
    return f'<path class="curve {name}" style="stroke:var(--{name})" d="{" ".join(path)}"/>{"".join(dots)}' if path else ""


def _table(windows: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    """The last window with deliveries, with a line for each consumer."""
    start = max((start for start, rows in windows.items() if any(row["subscription"] is not None for row in rows)), default=None)
    if start is None:
        return ""
    lines = []
    for row in sorted(windows[start], key=lambda row: (row["subscription"] or "", row["consumer"] or "")):
        if row["subscription"] is None:
            continue
        cells = (
            escape(row["subscription"]),
            escape(row["consumer"] or "–"),
            _number(row["delivered_per_second"]),
            _number(row["acked_per_second"]),
            _milliseconds(row["wait_p95_ms"]),
            _milliseconds(row["processing_p95_ms"]),
            _percent(row["redelivery_ratio"]),
            _percent(row["dead_letter_ratio"]),
            _percent(row["error_ratio"]),
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    label = f'<p style="margin:14px 0 -8px">The window from {_clock(start)}</p>'
    return f'{label}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top


def _ceiling(value: float) -> float:
    """The next round number that divides well by four."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** floor(log10(value))
    return next(scale * step for step in (1, 2, 4, 6, 8, 10) if scale * step >= value * 0.999_999)


def _second(instant: datetime) -> int:
    return int(instant.timestamp())


def _clock(second: int, with_date: bool = False) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M" if with_date else "%H:%M:%S" if second % 60 else "%H:%M")


def _span(seconds: int) -> str:
    for size, unit in ((3600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit}{'s' if seconds > size else ''}"
    return f"{seconds} seconds"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 60_000:
        return f"{value / 60_000:.3g} min"
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{_number(value)} ms"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.3g} %"
