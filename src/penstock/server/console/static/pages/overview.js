// The first page: the status, and what needs attention first.

import { watch } from "../app.js";
import { legend, lineChart } from "../chart.js";
import { command, el, empty, facts, keyed, path, setContent, setText, state, time } from "../dom.js";
import { age, bytes, count, instant, percent, rate, short, span } from "../format.js";

const LEVELS = { ok: ["ok", "well"], warn: ["growing", "look"], bad: ["failed", "act"] };
const POINTS = 180, FEWEST = 24; // 15 minutes; 2 minutes if the server has just started

export function mount(main) {
  const status = el("p", {}), verdict = el("div", { class: "verdict", role: "status" }, status);
  const attention = el("ul", { class: "list" }), well = el("div", {});
  const attentionCard = el("section", { class: "card" }, el("header", {}, el("h2", {}, "Needs attention")), attention, well);
  const chart = lineChart("Messages per second, in and out, over the last 15 minutes");
  const tiles = el("div", { class: "tiles" }), server = el("div", { class: "body" });
  const rates = el("p", { class: "small soft" });
  main.replaceChildren(
    el("h1", { class: "unseen" }, "Overview"), verdict, tiles,
    el("div", { class: "two" }, attentionCard, el("div", { class: "column" },
      el("section", { class: "card" }, el("header", {}, el("h2", {}, "Messages per second"), chart.reading, legend(["in", "out"])), el("div", { class: "body" }, chart.node, rates)),
      el("section", { class: "card" }, el("header", {}, el("h2", {}, "Server")), server))));

  return watch("overview", {}, (data) => {
    const { status: now, totals, series, server: process } = data;
    verdict.className = `verdict ${{ ok: "good" }[now.level] ?? now.level}`;
    setText(status, now.text);
    keyed(attention, data.attention, (row) => `${row.kind} ${row.name} ${row.level}`, (row) => el("li", {}, state(...(LEVELS[row.level] ?? LEVELS.warn)), el("a", { href: row.link }, row.name), el("span", { class: "soft" })), (node, row) => setText(node.lastChild, row.text));
    attention.hidden = !data.attention.length;
    const isNew = !totals.queues && !totals.topics;
    setContent(well, data.attention.length ? "" : isNew ? "new" : "well", () => data.attention.length ? null
      : isNew ? empty("There are no queues or topics yet. Create a queue and publish a first message:", command("penstock queue create mail"), command("penstock queue publish mail hello"))
        : empty("Nothing needs your attention."));
    // The rates are those at the end of the chart, so that both show the same.
    const figures = [
      [short(totals.backlog), "not settled", path("queues")],
      [totals.oldest_seconds === null ? "–" : age(totals.oldest_seconds * 1000), "oldest", path("queues")],
      [short(totals.in_flight), "in flight", path("workers")],
      [short(totals.delayed), "delayed", path("queues")],
      [short(totals.dead), "dead", path("dead"), totals.dead ? "bad" : ""],
      [rate(series.in.at(-1)), "in per second", path("topics")],
      [rate(series.out.at(-1)), "out per second", path("workers")],
    ];
    keyed(tiles, figures, (tile) => tile[1], ([, name, link]) => el("a", { class: "tile", href: link }, el("b", {}), el("span", {}, name)), (node, [value, , , mood]) => {
      setText(node.firstChild, value);
      node.firstChild.className = mood ?? "";
    });
    const points = Math.max(FEWEST, Math.min(series.in.length, POINTS));
    const end = instant(series.end_at), last = (values) => [...Array(Math.max(0, points - values.length)).fill(null), ...values.slice(-points)];
    chart.update({ at: Array.from({ length: points }, (_, index) => end - (points - 1 - index) * series.step_seconds * 1000), in: last(series.in), out: last(series.out) });
    setText(rates, [...series.in, ...series.out].some(Boolean) ? "" : "No messages in the last 15 minutes.");
    setContent(server, [process.problem, process.disk_free_bytes, Math.round(process.memory_bytes / 1e6), process.loop_lag_seconds].join(), () => facts([
      ["State", process.problem ? el("span", {}, state("failed", "refuses writes"), ` ${process.problem}`) : state("running", "running")],
      ["Started", time(instant(process.started_at))],
      ["Messages are kept", process.is_durable ? "on disk" : "in memory: they end with the server"],
      ["Disk free", process.disk_total_bytes ? `${bytes(process.disk_free_bytes)} of ${bytes(process.disk_total_bytes)} (${percent(process.disk_free_bytes, process.disk_total_bytes)})` : null],
      ["Memory", bytes(process.memory_bytes)],
      ["Loop lag", process.loop_lag_seconds === null ? null : span(process.loop_lag_seconds * 1000)],
      ["Here", `${count(totals.queues)} queues, ${count(totals.topics)} topics, ${count(totals.subscriptions)} subscriptions`],
      ["Version", process.version],
    ]));
  });
}
