// Three kinds of charts as SVG: a line chart of two series, a sparkline, and bars. Zero-based; a gap in the data stays a gap.

import { el, svg } from "./dom.js";
import { clock, count, rate } from "./format.js";

/** The next of 1, 2, 5, 10, 20 … that is not below the value: what an axis ends with. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((top) => top >= value * 0.999);
}

/** The path of a series: values by index, null where there is none. A point between two gaps is a dot. */
export function path(values, top, width, height, left = 0) {
  const step = width / Math.max(values.length - 1, 1), parts = [];
  let isOpen = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) { isOpen = false; return; }
    const x = (left + index * step).toFixed(1), y = (height - (Math.min(value, top) / top) * height).toFixed(1);
    parts.push(`${isOpen ? "L" : "M"}${x} ${y}`);
    if (!isOpen && (values[index + 1] === null || values[index + 1] === undefined)) parts.push("h0.1");
    isOpen = true;
  });
  return parts.join("");
}

/** A chart of `in` and `out` per second over time; `update({at: [], in: [], out: []})` redraws it. */
export function lineChart(label, names = ["in", "out"]) {
  const W = matchMedia("(max-width: 760px)").matches ? 340 : 560, H = 150, LEFT = 40, BOTTOM = 18, TOP = 8;
  const one = svg("path", { class: "one" }), two = svg("path", { class: "two-line" }), area = svg("path", { class: "area" });
  const grid = [0, 0.5, 1].map((share) => {
    const y = TOP + (1 - share) * H;
    return { share, text: svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }), line: svg("line", { class: "grid", x1: LEFT, x2: W, y1: y, y2: y }) };
  });
  const times = [0, 1 / 3, 2 / 3, 1].map((share) => ({ share, text: svg("text", { x: LEFT + share * (W - LEFT), y: TOP + H + BOTTOM - 3, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }) }));
  const lines = svg("g", { transform: `translate(0 ${TOP})` }, area, two, one);
  const cursor = svg("line", { class: "at", y1: TOP, y2: TOP + H, visibility: "hidden" });
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${TOP + H + BOTTOM}`, role: "img", "aria-label": label }, ...grid.flatMap((g) => [g.line, g.text]), ...times.map((t) => t.text), lines, cursor);
  const reading = el("span", { class: "small soft" });
  const body = el("tbody");
  const hidden = el("div", { class: "unseen" }, el("table", {}, el("caption", {}, label), el("thead", {}, el("tr", {}, ...["time", ...names].map((name) => el("th", {}, name)))), body));
  let data = { at: [], in: [], out: [] };
  const show = (index) => {
    const at = data.at[index];
    reading.textContent = at ? `${clock(at)}  ${names[0]} ${rate(data.in[index])}/s, ${names[1]} ${rate(data.out[index])}/s` : "";
    cursor.setAttribute("visibility", at ? "visible" : "hidden");
    const x = LEFT + (index / Math.max(data.at.length - 1, 1)) * (W - LEFT);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * W;
    show(Math.max(0, Math.min(data.at.length - 1, Math.round(((x - LEFT) / (W - LEFT)) * (data.at.length - 1)))));
  });
  picture.addEventListener("pointerleave", () => show(-1));
  return {
    node: el("figure", {}, picture, hidden),
    reading,
    update(next) {
      data = next;
      const top = ceiling(Math.max(0, ...data.in.filter(Number.isFinite), ...data.out.filter(Number.isFinite)));
      for (const { share, text } of grid) text.textContent = share ? count(share * top) : "0";
      for (const { share, text } of times) text.textContent = data.at.length ? clock(data.at[Math.round(share * (data.at.length - 1))]).slice(0, data.at.length < 60 ? 8 : 5) : "";
      const first = path(data.in, top, W - LEFT, H, LEFT);
      one.setAttribute("d", first);
      two.setAttribute("d", path(data.out, top, W - LEFT, H, LEFT));
      area.setAttribute("d", data.in.some((value) => value === null) || !first ? "" : `${first}V${H}H${LEFT}Z`);
      const every = Math.ceil(data.at.length / 15);
      body.replaceChildren(...data.at.flatMap((at, index) => (index % every ? [] : [el("tr", {}, ...[clock(at), rate(data.in[index]), rate(data.out[index])].map((text) => el("td", {}, text)))])));
    },
  };
}

export const legend = (names) =>
  el("div", { class: "legend" }, ...names.map((name, index) => el("span", {}, svg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, svg("path", { class: index ? "two-line" : "one", d: "M0 4h22" })), name)));

/** A small line without axes. */
export function sparkline(values, label, kind = "spark") {
  const top = Math.max(...values.filter(Number.isFinite), 0);
  return svg("svg", { class: kind, viewBox: "0 -1 72 20", role: "img", "aria-label": label }, top ? svg("path", { class: "one", d: path(values, top, 72, 18) }) : null);
}

/** Bars without axes, for counts per hour. */
export function sparkBars(values, label) {
  const top = Math.max(...values, 1), width = 72 / Math.max(values.length, 1);
  const bars = values.map((value, index) => value && svg("rect", { class: "hour", x: index * width, width: Math.max(width - 0.6, 1), y: 18 - Math.max((value / top) * 18, 1.5), height: Math.max((value / top) * 18, 1.5) }));
  return svg("svg", { class: "spark", viewBox: "0 0 72 18", role: "img", "aria-label": label }, ...bars);
}

/** One bar of parts beside each other: [{value, kind, name}]. */
export function stackedBar(parts, kind = "stack-bar", width = 64) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  let x = 0;
  const label = parts.filter((part) => part.value).map((part) => `${part.name}: ${count(part.value)}`).join(", ");
  return svg("svg", { class: kind, viewBox: `0 0 ${width} 8`, preserveAspectRatio: "none", role: "img", "aria-label": label || "nothing" },
    svg("rect", { class: "ground p0", width, height: 8 }),
    ...parts.map((part) => {
      const size = total ? (part.value / total) * width : 0;
      x += size;
      return size ? svg("rect", { class: part.kind, x: x - size, width: size, height: 8 }, svg("title", {}, `${part.name}: ${count(part.value)}`)) : null;
    }));
}

/** How full something is. */
export function meter(used, size, label) {
  const share = size ? Math.min(used / size, 1) : 0;
  return svg("svg", { class: "meter", viewBox: "0 0 64 8", role: "img", "aria-label": label }, svg("rect", { class: "ground", width: 64, height: 8, rx: 3 }), share ? svg("rect", { class: share >= 1 ? "full" : "part", width: 64 * share, height: 8, rx: 3 }) : null);
}
