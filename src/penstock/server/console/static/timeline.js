// The life of a message over time: a scale that shortens long gaps, the bar of a lane, and the rows of the event table, in which runs of equal events are folded.

import { svg } from "./dom.js";
import { instant, span } from "./format.js";

const CUT = 5;

/**
 * A scale on which 7 ms and 7 h both read: gaps beyond five times the median are cut to that length.
 * Returns {x, cuts}: `x(at)` from 0 to `width`, and the cuts as {x, length}.
 */
export function scale(moments, width, least = 14) {
  const points = [...new Set(moments)].sort((a, b) => a - b);
  const gaps = points.slice(1).map((at, index) => at - points[index]);
  const sorted = [...gaps].sort((a, b) => a - b), limit = CUT * (sorted[Math.floor((sorted.length - 1) / 2)] ?? 1);
  const shown = gaps.map((gap) => Math.min(gap, limit));
  const total = shown.reduce((sum, gap) => sum + gap, 0) || 1;
  const room = Math.max(width - least * gaps.length, 0), floor = gaps.length ? Math.min(least, width / gaps.length) : 0;
  const places = [0], cuts = [];
  shown.forEach((gap, index) => {
    const size = floor + (gap / total) * room;
    if (gaps[index] > limit) cuts.push({ x: places[index] + size / 2, length: gaps[index] });
    places.push(places[index] + size);
  });
  const x = (at) => {
    if (at <= points[0]) return 0;
    for (let index = 1; index < points.length; index += 1) {
      if (at <= points[index]) return places[index - 1] + ((at - points[index - 1]) / (points[index] - points[index - 1])) * (places[index] - places[index - 1]);
    }
    return places.at(-1);
  };
  return { x, cuts };
}

/** Rows of the event table: {event} for one event, {events, text} for a run that is folded. `folds` are {first, count, text}, in order. */
export function rows(events, folds) {
  const found = [];
  let at = 0;
  for (const fold of folds) {
    while (at < fold.first) found.push({ event: events[at], index: at++ });
    found.push({ events: events.slice(at, at + fold.count), index: at, text: fold.text });
    at += fold.count;
  }
  while (at < events.length) found.push({ event: events[at], index: at++ });
  return found;
}

/** Every moment that the bars of these lanes show. */
export const moments = (lanes, now) => lanes.flatMap((lane) => [...lane.segments.flatMap((part) => [instant(part.from_at), part.kind === "dead" ? instant(part.from_at) : instant(part.to_at) ?? now]), ...lane.ticks.map((tick) => instant(tick.at))]);

/** The bar of a lane. It decorates: the table under it has the same in words. */
export function drawBar(lane, { x, cuts }, width, now) {
  const Y = 14, H = 14;
  const parts = lane.segments.map((part) => ({ kind: part.kind, from: x(instant(part.from_at)), to: x(instant(part.to_at) ?? now) }));
  const shapes = parts.filter((part) => part.kind !== "dead").map((part) => svg("rect", { class: part.kind, x: part.from, y: Y, width: Math.max(part.to - part.from, 2), height: H, rx: 2 }));
  const cut = cuts.map((one) => svg("g", {}, svg("path", { class: "cut", d: `M${one.x} ${Y + H + 3}l5 -${H + 6}` }), svg("path", { class: "cut-edge", d: `M${one.x - 4} ${Y + H + 3}l5 -${H + 6}M${one.x + 4} ${Y + H + 3}l5 -${H + 6}` }), svg("text", { x: one.x, y: Y + H + 14, "text-anchor": "middle" }, span(one.length))));
  let free = -20;
  const marks = lane.ticks.map((tick) => {
    const at = x(instant(tick.at)), label = tick.status ? String(tick.status) : "", hasRoom = at >= free;
    if (hasRoom && label) free = at + 8 * label.length + 6;
    return svg("g", {}, svg("path", { class: "tick", d: `M${at} ${Y - 3}v${H + 6}` }), hasRoom && label ? svg("text", { class: tick.level, x: at, y: Y - 5, "text-anchor": at > width - 20 ? "end" : at < 10 ? "start" : "middle" }, label) : null);
  });
  const last = parts.at(-1), end = lane.is_ended && last ? svg("circle", { class: lane.state === "done" ? "done" : "dead", cx: last.kind === "dead" ? last.from : last.to, cy: Y + H / 2, r: 7 }) : null;
  return svg("svg", { class: "bar", viewBox: `0 0 ${width} 44`, preserveAspectRatio: "xMinYMid meet", "aria-hidden": "true" }, ...shapes, ...cut, ...marks, end);
}
