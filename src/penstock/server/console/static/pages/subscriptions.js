// Subscriptions: the list, and one subscription with its position, seek and snapshot.

import { post } from "../api.js";
import { actionButton, ask } from "../dialog.js";
import { command, el, empty, path } from "../dom.js";
import { count } from "../format.js";
import { columns } from "./backlog.js";
import { list, one } from "./queues.js";

export const mount = (main, context) => (context.parts.length ? one(main, "subscriptions", context.parts[0], parts) : list(main, "subscriptions", "Subscriptions", columns("subscriptions"), () => empty("No subscriptions yet.", command("penstock topic create orders"), command("penstock subscription create billing --topic orders"))));

function parts({ row, position }) {
  return [{ key: "position", shows: JSON.stringify([row.topic, row.filter, row.push, row.detached, position]), make: () => el("section", { class: "card" }, el("header", {}, el("h2", {}, "Position")), el("div", { class: "body" },
    el("dl", { class: "facts" }, ...[["Topic", el("a", { href: path("topics", row.topic) }, row.topic)], ["Settled to offset", count(position?.settled_to)], ["End of the topic", count(position?.latest)], ["Behind", position ? count(position.latest - position.settled_to) : "–"], ["Filter", row.filter ? el("code", {}, row.filter) : "none"], ["Push to", row.push ?? "nobody: consumers pull"], ["Ordered", row.ordered ? "yes" : "no"]].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("div", { class: "head" }, actionButton("Seek…", "manage", () => seek(row.name)), actionButton("Take snapshot…", "manage", () => snapshot(row.name))))) }];
}

/** Where to, then what it would do, then the name. */
async function seek(name) {
  const to = el("input", { name: "to", required: true, placeholder: "120, or 2026-05-03 14:00", autocomplete: "off" });
  const kind = el("select", { name: "kind", "aria-label": "Seek to" }, ...[["time", "a time"], ["offset", "an offset"], ["snapshot", "a snapshot"]].map(([value, text]) => el("option", { value }, text)));
  const preview = await ask({ title: `Seek ${name}`, label: "Preview", content: [el("p", { class: "small" }, "What lies before the place is settled, the rest is delivered, also what was acked before."), el("div", { class: "head" }, kind, to)], run: async (values) => {
    const where = { time: () => ({ time: new Date(values.to).toISOString() }), offset: () => ({ offset: Number(values.to) }), snapshot: () => ({ snapshot: values.to }) }[values.kind];
    let body;
    try { body = where(); } catch { throw new Error(`"${values.to}" is not a time, expected 2026-05-03 14:00`); }
    return { body, ...(await post(["subscriptions", name, "seek", "preview"], body)) };
  } });
  if (preview) await ask({ title: `Seek ${name}`, label: "Seek", name, content: [el("p", {}, `This ${preview.text}.`)], run: ({ confirm }) => post(["subscriptions", name, "seek"], { ...preview.body, confirm }) });
}

const snapshot = (name) => ask({ title: `Snapshot of ${name}`, label: "Take snapshot", content: [el("label", { class: "field" }, "Name", el("input", { name: "snapshot", required: true, autocomplete: "off" }))], run: (values) => post(["subscriptions", name, "snapshot"], { snapshot: values.snapshot }) });
