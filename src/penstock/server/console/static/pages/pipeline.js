// Readers outside the broker: their positions, and their results: causes of dead letters, and metrics.

import { get } from "../api.js";
import { watch } from "../app.js";
import { sparkBars } from "../chart.js";
import { command, el, empty, facts, fromQuery, messageLink, path, setText, time, withQuery } from "../dom.js";
import { count, instant, plural, quote, short, span, visible, words } from "../format.js";
import { Table } from "../table.js";

const card = (title, note, ...parts) => el("section", { class: "card" }, el("header", {}, el("h2", {}, title), note && el("span", { class: "small soft" }, note)), ...parts);
const here = (changes) => withQuery(changes, path("pipeline"));
const isQueue = (group) => group.stream === `queue:${group.subscription}`;
const of = (group) => (isQueue(group) ? group.subscription : `${group.stream} → ${group.subscription}`);
const link = (group) => (isQueue(group) ? withQuery({ source: group.stream }, path("dead")) : path("subscriptions", group.subscription));

/** One cause of dead letters: what they have in common, what to do, and some of them. */
function showCause(place, group, at) {
  if (!group) {
    place.replaceChildren(empty("The newest triage has no such group.", el("a", { class: "button", href: here({ group: null }) }, "All causes")));
    return;
  }
  place.replaceChildren(
    el("p", { class: "verdict" }, visible(group.error || words(group.reason))),
    card(`${plural(group.count, "dead letter")} with one cause`, el("span", {}, "triage of ", time(instant(at))), el("div", { class: "body stack" },
      facts([["Of", el("a", { href: link(group) }, of(group))], ["What to do", group.action], ["Reason", words(group.reason)], ["Target", visible(group.target)], ["Status", group.status || ""], ["Version", visible(group.version)], ["Payload", visible(group.shape)], ["First", time(instant(group.first_at))], ["Last", time(instant(group.last_at))], ["One error", visible(group.example)]]),
      el("div", {}, el("p", { class: "label" }, "Some of them"), el("ul", { class: "notes" }, ...group.samples.map((id) => el("li", {}, messageLink(id, 30))))),
      group.condition && el("p", { class: "small roomy" }, command(`penstock pipeline redrive ${quote(group.stream)} --sql ${quote(group.condition)}`)))));
}

export function mount(main) {
  const cursors = new Table({
    label: "Cursors", key: (row) => row.name,
    columns: [
      { label: "Cursor", kind: "name", phone: "name", show: (row) => row.name },
      { label: "Lag", kind: "number", phone: "figure", show: (row) => count(row.lag) },
      { label: "Streams", kind: "number", phone: "figure", show: (row) => count(row.streams.length) },
      { label: "Holds messages", kind: "whole", phone: "figure", show: (row) => (row.holds ? "yes" : "no") },
      { label: "Last seen", kind: "whole", phone: "figure", show: (row) => ({ key: row.updated_at, nodes: () => time(instant(row.updated_at)) }) },
    ],
    none: empty("No reader keeps a cursor yet. The archive job is one:", command("penstock pipeline run --lake lake")),
  });
  const streams = new Table({
    label: "Streams of the cursors", key: (row) => `${row.cursor} ${row.stream}`,
    columns: [
      { label: "Stream", kind: "name", phone: "name", show: (row) => row.stream },
      { label: "Cursor", kind: "name", phone: "line", show: (row) => row.cursor },
      { label: "Offset", kind: "number", phone: "figure", show: (row) => count(row.offset) },
      { label: "Lag", kind: "number", phone: "figure", show: (row) => count(row.lag) },
      { label: "Read up to", kind: "whole", phone: "figure", show: (row) => ({ key: row.read_to_at, nodes: () => time(instant(row.read_to_at)) }) },
    ],
    none: empty("No streams."),
  });
  const metrics = new Table({
    label: "Latest metrics", key: (row) => `${row.window_end} ${row.stream} ${row.subscription} ${row.consumer}`,
    columns: [
      { label: "Window ended", kind: "whole", phone: "state", show: (row) => ({ key: row.window_end, nodes: () => time(instant(row.window_end)) }) },
      { label: "Of", kind: "name", phone: "name", show: (row) => [row.stream, row.subscription, row.consumer].filter(Boolean).join(" → ") },
      { label: "Published", kind: "number", phone: "figure", show: (row) => count(row.published) },
      { label: "Delivered", kind: "number", show: (row) => count(row.delivered) },
      { label: "Acked", kind: "number", phone: "figure", show: (row) => count(row.acked) },
      { label: "Failed", kind: "number", phone: "figure", show: (row) => count(row.nacked + row.expired) },
      { label: "Dead", kind: "number", show: (row) => count(row.dead_lettered) },
      { label: "Wait, p95", kind: "number", show: (row) => (row.wait_p95_ms === null ? "–" : span(row.wait_p95_ms)) },
    ],
    none: empty("The metrics job has published nothing yet."),
  });
  const causes = new Table({
    label: "Causes of dead letters", key: (row) => row.id,
    columns: [
      { label: "Cause", kind: "words", phone: "line", show: (row) => ({ key: row.error, nodes: () => el("a", { href: here({ group: row.id }), title: row.example }, visible(row.error || words(row.reason))) }) },
      { label: "Of", kind: "name", phone: "name", show: (row) => of(row) },
      { label: "Target", kind: "name", show: (row) => visible(row.target) || "–" },
      { label: "Status", kind: "number", show: (row) => row.status || "–" },
      { label: "Version", kind: "name", show: (row) => visible(row.version) || "–" },
      { label: "Letters", kind: "number", phone: "state", show: (row) => short(row.count) },
      { label: "Last", kind: "whole", phone: "figure", show: (row) => ({ key: row.last_at, nodes: () => time(instant(row.last_at)) }) },
      { label: "What to do", kind: "words", phone: "line", show: (row) => row.action },
    ],
    none: empty("No triage has run yet:", command("penstock pipeline triage")),
  });
  const levels = new Table({
    label: "Queues, pools and targets over time", key: (row) => `${row.kind} ${row.name} ${row.priority}`,
    columns: [
      { label: "Of", kind: "name", phone: "name", show: (row) => visible(row.name) },
      { label: "Kind", kind: "whole", phone: "state", show: (row) => (row.priority === null ? row.kind : `priority ${row.priority}`) },
      { label: "Over time", kind: "number", show: (row) => ({ key: `${row.window_end} ${row.trend}`, nodes: () => sparkBars(row.trend, row.kind === "target" ? "time open" : `most ready at a time: ${count(Math.max(...row.trend))}`) }) },
      { label: "Ready", kind: "number", phone: "figure", show: (row) => count(row.ready) },
      { label: "In flight", kind: "number", show: (row) => count(row.in_flight) },
      { label: "Delayed", kind: "number", show: (row) => count(row.delayed) },
      { label: "Dead", kind: "number", show: (row) => count(row.dead) },
      { label: "Oldest", kind: "number", phone: "figure", show: (row) => (row.oldest_age_ms === null ? "–" : span(row.oldest_age_ms)) },
      { label: "Retries", kind: "number", show: (row) => count(row.retries) },
      { label: "Utilisation", kind: "number", phone: "figure", show: (row) => (row.utilisation === null ? "–" : `${Math.round(row.utilisation * 100)} %`) },
      { label: "Rate-limit waits", kind: "number", show: (row) => count(row.rate_limit_waits) },
      { label: "Breaker open", kind: "number", show: (row) => (row.kind === "target" ? span(row.open_ms) : "–") },
    ],
    none: empty("The metrics job has sampled nothing yet:", command("penstock pipeline run --lake lake")),
  });
  const found = el("span", {}), cause = el("div", { class: "column", hidden: true }), crumb = el("p", { class: "crumbs" }, el("a", { href: here({ group: null }) }, "Pipeline"));
  const streamsCard = card("Streams, most behind first", null, streams.node);
  const all = el("div", { class: "column" },
    card("Cursors", "a cursor that holds keeps messages from being removed", cursors.node), streamsCard,
    card("Why messages died", found, causes.node), card("Queues, pools and targets over time", "the last 60 windows; the figures are those of the newest", levels.node), card("Latest metrics", null, metrics.node));
  main.replaceChildren(el("div", { class: "head" }, crumb, el("h1", {}, "Pipeline")), cause, all);

  let triage = null, triages = -1, windows = -1;
  const show = () => {
    const chosen = fromQuery("group");
    cause.hidden = crumb.hidden = !chosen;
    all.hidden = Boolean(chosen);
    if (chosen && triage) showCause(cause, triage.groups.find((group) => group.id === chosen), triage.at);
  };
  const load = async (number) => {
    triages = number;
    triage = await get(["triage"]);
    causes.update(triage.groups);
    found.replaceChildren(...(triage.at ? [`${plural(triage.total, "dead letter")} in ${plural(triage.groups.length, "group")}, `, time(instant(triage.at))] : []));
    show();
  };
  const loadLevels = async (number) => {
    windows = number;
    const shown = (await get(["levels", "history"])).windows, keyOf = (row) => `${row.kind} ${row.name} ${row.priority ?? null}`;
    const past = shown.toReversed().map((rows) => new Map(rows.map((row) => [keyOf(row), row])));
    levels.update((shown[0] ?? []).map((row) => ({ priority: null, oldest_age_ms: null, utilisation: null, ...row, trend: past.map((rows) => (row.kind === "target" ? rows.get(keyOf(row))?.open_ms : rows.get(keyOf(row))?.ready_max) ?? 0) })));
  };
  show();
  const unmount = watch("pipeline", {}, (data) => {
    metrics.update(data.metrics);
    cursors.update([...data.cursors].sort((a, b) => b.lag - a.lag));
    const all = data.cursors.flatMap((cursor) => cursor.streams.map((one) => ({ ...one, cursor: cursor.name })));
    streamsCard.hidden = !all.length;
    streams.update(all.sort((a, b) => b.lag - a.lag).slice(0, 200));
    if (data.windows !== windows) loadLevels(data.windows).catch(() => { windows = -1; });
    if (data.triages !== triages) load(data.triages).catch((error) => setText(found, error.text ?? error.message));
  });
  return { unmount, query: show };
}
