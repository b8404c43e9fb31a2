// Dead letters: what failed and why; group, inspect, preview, redrive, take back.

import { download, get, post } from "../api.js";
import { watch } from "../app.js";
import { sparkBars, stackedBar } from "../chart.js";
import { actionButton, ask, destroy, may, menuButton, perform } from "../dialog.js";
import { command, el, empty, fromQuery, keyed, messageLink, path, setContent, setText, state, time, toast, withQuery } from "../dom.js";
import { count, instant, plural, quote, short, visible, words } from "../format.js";
import { Table } from "../table.js";
import { forms } from "./payload.js";

const sourceName = (source) => `${source.kind}:${source.name}`;
const sourceText = (source) => (source.subscription ? `${source.subscription} → ${source.name}` : source.name);
const here = (changes) => withQuery(changes, path("dead"));

export function mount(main) {
  const summary = el("span", { class: "small soft" }), jobs = el("div", { class: "column" }), place = el("div", { class: "column" }), crumb = el("p", { class: "crumbs", hidden: true }, el("a", { href: path("dead") }, "All dead letters"));
  main.replaceChildren(el("div", { class: "head" }, crumb, el("h1", {}, "Dead letters"), summary), jobs, place);
  let end = null, part = null, isAsking = false;

  const refreshJobs = async () => {
    if (isAsking) return;
    isAsking = true;
    const found = await get(["jobs"]).catch(() => null);
    isAsking = false;
    if (found) showJobs(jobs, found.jobs.slice(0, 5), refreshJobs);
  };

  const show = () => {
    end?.();
    const chosen = { source: fromQuery("source"), group: fromQuery("group") };
    crumb.hidden = !chosen.source;
    part = chosen.source ? inspect(place, chosen, refreshJobs) : groups(place, refreshJobs);
    let isFirst = true;
    end = watch("dead", {}, (data) => {
      setText(summary, data.total ? `${plural(data.total, "letter")} in ${plural(data.groups.length, "group")}${data.is_bounded ? ", the newest 1,000 of each dead-letter topic" : ""}` : "");
      part(data);
      if (isFirst || jobs.querySelector("[data-running]")) refreshJobs();
      isFirst = false;
    });
  };
  show();
  return { unmount: () => end(), query: show };
}

// ── groups ──

function groups(place, changed) {
  const table = new Table({
    label: "Groups of dead letters", key: (row) => row.id,
    columns: [
      { label: "Error", kind: "words", phone: "line", show: (row) => ({ key: `${row.signature} ${row.again}`, nodes: () => [el("a", { href: here({ source: sourceName(row.source), group: row.id }), title: row.example }, visible(row.signature || row.reason_text)), row.again ? el("span", { class: "chip bad" }, `${count(row.again)} died again after a redrive`) : null] }) },
      { label: "From", kind: "name", phone: "name", show: (row) => ({ key: sourceName(row.source), nodes: () => el("a", { href: here({ source: sourceName(row.source) }) }, sourceText(row.source)) }) },
      { label: "Reason", kind: "whole", show: (row) => words(row.reason) },
      { label: "Letters", kind: "number", phone: "state", show: (row) => short(row.count) },
      { label: "24 h", kind: "number", show: (row) => ({ key: row.trend.join(), nodes: () => sparkBars(row.trend, `${count(row.trend.reduce((sum, one) => sum + one, 0))} in the last 24 hours`) }) },
      { label: "First", kind: "whole", show: (row) => ({ key: row.first_at, nodes: () => time(instant(row.first_at)) }) },
      { label: "Last", kind: "whole", phone: "figure", show: (row) => ({ key: row.last_at, nodes: () => time(instant(row.last_at)) }) },
      { label: "Actions", kind: "actions", phone: "figure", show: (row) => ({ key: row.id, nodes: () => letterActions(row.source, { group: row.id }, changed) }) },
    ],
    none: empty("No dead letters: every message was settled, or still waits.", command("penstock dlq --help")),
  });
  place.replaceChildren(el("section", { class: "card" }, table.node));
  return (data) => table.update(data.groups);
}

/** Redrive in the row; export and purge in the menu. */
function letterActions(source, selection, changed, kind = "") {
  const wish = { source: sourceName(source), group: null, where: null, message_ids: null, ...selection };
  return [
    actionButton("Redrive…", "manage", () => redrive(source, wish, changed), { kind }), " ",
    menuButton(`More for ${sourceText(source)}`, () => [
      { label: "Export as JSON lines", verb: "consume", run: () => perform(null, async () => download(["dead", "export"], { selection: (await post(["dead", "preview"], wish)).selection }, `${source.name}-dead.ndjson`)) },
      { label: "Purge…", verb: "manage", isHarmful: true, run: () => purge(source, wish) },
    ]),
  ];
}

async function purge(source, wish) {
  const found = await perform(null, () => post(["dead", "preview"], wish));
  if (found) destroy({ title: `Purge ${plural(found.matched, "dead letter")} of ${source.name}`, text: "They are removed for good. Export them first if you may need them: there is no undo.", label: "Purge", name: source.name, run: ({ confirm }) => post(["dead", "purge"], { selection: found.selection, confirm }), done: (result) => `${plural(result.purged, "letter")} removed` });
}

/** Preview, choose how many and how fast, start the job. */
async function redrive(source, wish, changed) {
  const found = await post(["dead", "preview"], wish);
  if (!found.matched) { toast("No letter matches any more."); return; }
  const many = el("input", { type: "number", name: "count", min: 1, max: found.matched, value: String(Math.min(100, found.matched)), "aria-label": "How many of the oldest" });
  const choice = (value, checked, ...text) => el("label", { class: "check" }, el("input", { type: "radio", name: "amount", value, checked }), ...text);
  await ask({
    title: `Redrive to ${sourceText(source)}`, label: "Redrive", content: [
      el("ul", { class: "small notes" }, ...found.text.map((line) => el("li", {}, line))),
      el("fieldset", { class: "choices" }, el("legend", { class: "label" }, "How many"), choice("one", found.matched > 1, "One first, to see whether it works now"), found.matched > 2 && choice("some", false, "The oldest ", many), choice("all", found.matched === 1, `All ${count(found.matched)}`)),
      el("label", { class: "field" }, "Messages per second (empty: as fast as possible)", el("input", { type: "number", name: "rate", min: 1, placeholder: "no limit" })),
    ],
    run: (values) => post(["dead", "redrive"], { selection: found.selection, limit: { one: 1, some: Number(values.count) }[values.amount] ?? null, rate: values.rate ? Number(values.rate) : null }),
  });
  changed();
}

// ── jobs ──

function showJobs(place, jobs, changed) {
  keyed(place, jobs, (job) => job.id, () => el("section", { class: "card" }), (node, job) => {
    const isRunning = job.state === "running";
    node.toggleAttribute("data-running", isRunning || job.waiting > 0);
    setContent(node, JSON.stringify(job), () => el("div", { class: "body" },
      el("div", { class: "head" }, state({ running: "working", done: "done", stopped: "stopped", failed: "failed" }[job.state], { running: "redriving", done: job.taken_back && !job.moved ? "taken back" : "redriven", stopped: "stopped", failed: "failed" }[job.state]),
        el("b", {}, sourceText(job.source)), el("span", { class: "small soft" }, time(instant(job.started_at)), job.by ? ` by ${job.by}` : "", job.rate ? ` · ${job.rate}/s` : ""),
        el("div", { class: "tools" }, isRunning && actionButton("Stop", "manage", () => post(["jobs", job.id, "stop"]).then(changed)),
          job.waiting > 0 && actionButton("Take back", "manage", () => post(["jobs", job.id, "take-back"]).then((result) => { changed(); return result; }), { done: (result) => result.text }))),
      stackedBar([{ kind: "good", name: "done", value: job.acked }, { kind: "bad", name: "dead again", value: job.dead_again }, { kind: "accent", name: "not settled yet", value: job.waiting }, { kind: "p0", name: "left", value: job.left + job.taken_back }], "progress", 600),
      el("p", { class: "small" }, `${count(job.moved)} of ${count(job.total)} moved · ${count(job.acked)} done · `, el("span", { class: job.dead_again ? "bad" : "" }, `${count(job.dead_again)} dead again`), ` · ${count(job.waiting)} not settled yet · ${count(job.left)} left`, job.text && el("span", { class: "warn" }, ` · ${job.text}`))));
  });
}

// ── inspect ──

function inspect(place, { source, group }, changed) {
  const [kind, ...rest] = source.split(":"), name = rest.join(":"), from = { kind, name };
  const newest = el("div", { class: "letters" }), newestCard = el("section", { class: "card", hidden: true }, el("header", {}, el("h2", {}, "The newest three")), el("div", { class: "body" }, newest)), summary = el("div", { class: "head" }), problem = el("p", { class: "bad small", role: "alert" });
  const where = el("input", { type: "search", name: "where", placeholder: "attempts>3 AND error~'timeout'", "aria-label": "Filter, in the language of penstock dlq --where", value: fromQuery("where") ?? "", spellcheck: "false", autocomplete: "off" });
  const chosen = new Set(), tools = el("div", { class: "tools" }), more = el("div", { class: "foot", hidden: true });
  const wish = () => ({ group, where: fromQuery("where"), message_ids: chosen.size ? [...chosen] : null });
  const showTools = () => tools.replaceChildren(chosen.size ? el("span", { class: "small soft" }, `${chosen.size} selected`) : "", ...letterActions(from, wish(), changed, "main"));
  const table = new Table({
    label: "Dead letters", key: (row) => row.message_id,
    columns: [
      { label: "Select", kind: "whole", phone: "state", show: (row) => ({ key: row.message_id, nodes: () => el("input", { type: "checkbox", "aria-label": `Select ${row.message_id}`, checked: chosen.has(row.message_id), disabled: !may("manage"), onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](row.message_id); showTools(); } }) }) },
      { label: "Message", kind: "name", phone: "name", show: (row) => ({ key: row.message_id, nodes: () => messageLink(row.message_id) }) },
      { label: "Error", kind: "words", phone: "line", show: (row) => ({ key: `${row.error} ${row.again}`, nodes: () => [visible(row.error || words(row.reason)), row.again && el("span", { class: "chip bad" }, "died again")] }) },
      { label: "Attempts", kind: "number", phone: "figure", show: (row) => count(row.attempts) },
      { label: "Died", kind: "whole", phone: "figure", show: (row) => ({ key: row.died_at, nodes: () => time(instant(row.died_at)) }) },
      { label: "Published", kind: "whole", show: (row) => ({ key: row.published_at, nodes: () => time(instant(row.published_at)) }) },
    ],
    none: empty("No letter matches.", el("a", { class: "button", href: here({ source: null, group: null, where: null }) }, "All dead letters")),
  });
  place.replaceChildren(summary,
    newestCard,
    el("section", { class: "card" }, el("div", { class: "body" }, el("form", { class: "row", onsubmit: (event) => { event.preventDefault(); history.replaceState(null, "", withQuery({ where: where.value.trim() })); chosen.clear(); showTools(); load(); } }, el("div", { class: "grow" }, where), el("button", { type: "submit" }, "Filter"), tools), problem,
      el("p", { class: "small soft roomy" }, command(`penstock dlq list ${quote(name)}${fromQuery("where") ? ` --where ${quote(fromQuery("where"))}` : ""}`))), table.node, more));
  showTools();
  let rows = [], seen = "";
  const load = async (offset = 0) => {
    problem.textContent = "";
    const data = await get(["dead", "letters"], { source, group, where: fromQuery("where"), offset, limit: 50 }).catch((error) => { problem.textContent = error.text; return null; });
    if (!data) return;
    rows = offset ? [...rows, ...data.rows] : data.rows;
    table.update(rows);
    newestCard.hidden = !rows.length;
    if (!offset) newest.replaceChildren(...sideBySide(data.rows.slice(0, 3)));
    more.hidden = rows.length >= data.matched;
    more.replaceChildren(`${count(rows.length)} of ${count(data.matched)}`, el("button", { type: "button", onclick: () => load(rows.length) }, "More"));
  };
  return (data) => {
    const mine = data.groups.filter((one) => (group ? one.id === group : sourceName(one.source) === source));
    setContent(summary, JSON.stringify(mine.map((one) => [one.id, one.count])), () => [el("h2", {}, sourceText(mine[0]?.source ?? from)), el("span", { class: "soft small" }, mine.length ? `${plural(mine.reduce((sum, one) => sum + one.count, 0), "letter")}${group ? `: ${mine[0].reason_text}` : ` in ${plural(mine.length, "group")}`}` : "no letters now")]);
    const now = JSON.stringify(mine.map((one) => [one.count, one.last_at]));
    if (now !== seen) { seen = now; load(); }
  };
}

/** Letters beside each other: error, payload, and the attributes in which they differ. */
function sideBySide(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.attributes)))], differing = names.filter((name) => new Set(rows.map((row) => row.attributes[name])).size > 1 || rows.length === 1);
  return rows.map((row) => {
    const shown = row.payload?.state === "shown" ? Object.values(forms(row.payload))[0]() : null;
    return el("article", {}, el("div", { class: "head" }, messageLink(row.message_id, 14), el("span", { class: "small soft" }, time(instant(row.died_at)))),
      el("p", { class: "small bad" }, visible(row.error || words(row.reason))),
      differing.length > 0 && el("p", { class: "small mono" }, differing.map((name) => `${name}=${row.attributes[name] ?? "–"}`).join("  ")),
      shown === null ? el("p", { class: "small soft" }, "The payload is not shown.") : el("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" }, visible(shown)));
  });
}

