// The frame around the pages: navigation, search, keys, live state. A page is `mount(main, context)`; it returns its clean-up function.

import { get, token } from "./api.js";
import { ask, closeAll, setVerbs } from "./dialog.js";
import { byId, command, el, empty, fromQuery, icon, path, refreshTime, setContent, setText, settings, state, withQuery } from "./dom.js";
import { clock, instant, short, span } from "./format.js";
import { Live } from "./live.js";
import { Store } from "./store.js";

// name: [title, key after `g`, icon, is shown on this server]
const PAGES = {
  overview: ["Overview", "o", "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-3H4z"],
  queues: ["Queues", "q", "M4 6h16M4 12h16M4 18h10"],
  subscriptions: ["Subscriptions", "s", "M5 5v6a4 4 0 0 0 4 4h10M15 11l4 4-4 4M5 5v14"],
  topics: ["Topics", "t", "M4 9h16M4 15h16M10 4 8 20M16 4l-2 16"],
  dead: ["Dead letters", "d", "M4 7h16v12H4zM4 8l8 6 8-6M9 3l6 0"],
  workers: ["Workers", "w", "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2"],
  router: ["Router", "r", "M4 12h6M10 12l6-6h4M10 12l6 6h4M18 3l3 3-3 3M18 15l3 3-3 3"],
  hub: ["Hub", "h", "M12 10v4M12 4v2M5 19l4-3M19 19l-4-3M10 12a2 2 0 1 0 4 0 2 2 0 0 0-4 0"],
  pipeline: ["Pipeline", "p", "M4 6c0-1 3-2 8-2s8 1 8 2-3 2-8 2-8-1-8-2zM4 6v12c0 1 3 2 8 2s8-1 8-2V6M4 12c0 1 3 2 8 2s8-1 8-2"],
  settings: ["Settings", "e", "M4 8h10M18 8h2M4 16h2M10 16h10M14 6v4M8 14v4"],
};
const PART_OF = { router: "router", hub: "hub", pipeline: "log_api" };
const LOGO = "M3 4v16M3 6h6c6 0 4 12 12 12M3 10h4c5 0 3 12 10 12";
const SEARCH = "M10 4a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15 15l5 5";

export const store = new Store();
export let session = null;
let current = { page: null, parts: [], unmount: null, query: null };
let seenAt = 0, skew = 0, gone = null, title = "";

const stored = (name) => { try { return localStorage.getItem(`penstock-${name}`); } catch { return null; } };
const keep = (name, value) => { try { localStorage.setItem(`penstock-${name}`, value); } catch { /* a private window: it lasts until the page is closed */ } };
settings.now = () => Date.now() + skew;
settings.isUtc = stored("utc") === "yes";
if (stored("theme")) document.documentElement.dataset.theme = stored("theme");

// ── live ──

const live = new Live(() => ({ token: token.get(), project: fromQuery("project") }), {
  state(name, detail) {
    gone = name === "gone" ? detail : null;
    showLive();
  },
  welcome(next) {
    session = next;
    skew = instant(next.now) - Date.now();
    setVerbs(next.verbs);
    showFrame();
    tick();
    if (!current.page || current.isWaiting) route();
  },
  snapshot(frame) {
    seenAt = Date.now();
    store.set("pulse", frame.pulse);
    document.querySelector("main > .failed")?.remove();
    store.set(`view:${frame.view}:${frame.key}`, frame.data);
  },
  error(frame) { store.set(`error:${frame.view}:${frame.key}`, frame.error); },
  denied(error) { askToken(error); },
}, { WebSocket, setTimeout: (run, ms) => setTimeout(run, ms), clearTimeout: (id) => clearTimeout(id), now: () => Date.now(), random: Math.random, url: `${location.origin.replace(/^http/, "ws")}/console/live` });

/** What the page shows, live: `show(data)` runs for the last snapshot that is known, and for each that comes. Returns what ends it. */
export function watch(view, parameters, show, failed) {
  const chosen = Object.fromEntries(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const key = JSON.stringify([fromQuery("project"), chosen]).slice(0, 200);
  const ends = [store.watch(`view:${view}:${key}`, show)];
  ends.push(store.watch(`error:${view}:${key}`, failed ?? ((error) => showProblem(error))));
  live.watch({ view, key, ...chosen });
  return () => { for (const end of ends) end(); };
}

/** A view that failed: what is shown stays, and the reason stands above it. */
function showProblem(error) {
  const main = byId("main"), node = main.querySelector(":scope > .failed") ?? el("p", { class: "verdict bad failed", role: "alert" });
  setText(node, error.hint ? `${error.message} (${error.hint})` : error.message);
  if (!node.isConnected) main.prepend(node);
}

/** Nothing is live on this page. */
const unwatch = () => live.watch(null);

function askToken(error) {
  const field = el("input", { type: "password", name: "token", autocomplete: "off", required: true, placeholder: "pk_…" });
  const again = token.get();
  byId("main").replaceChildren(el("form", { class: "card stack", onsubmit: (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    byId("main").replaceChildren(el("p", { class: "soft" }, "Loading…"));
    current.page = null;
    live.open();
  } }, el("header", {}, el("h1", {}, "This server asks for a token")), el("div", { class: "body" },
    again ? el("p", { class: "bad", role: "alert" }, error?.message ?? "The token was refused.") : el("p", {}, "Tokens say what you may see and do. Create one on the server's machine:"),
    el("p", {}, command("penstock token create --name console")),
    el("label", { class: "field" }, "Token", field),
    el("p", { class: "small soft" }, "It stays in this tab and is forgotten when the tab is closed."),
    el("div", {}, el("button", { class: "main", type: "submit" }, "Open the console")))));
  field.focus();
}

function showLive() {
  const node = byId("live"), name = live.state, bar = byId("bar");
  if (!node) return;
  setContent(node, name, () => [state({ gone: "gone", denied: "gone", hidden: "paused" }[name] ?? name, { live: "live", connecting: "connecting", gone: "no server", denied: "no access", paused: "paused", hidden: "paused" }[name])]);
  node.setAttribute("aria-pressed", name === "paused");
  node.title = name === "paused" ? "Updates are paused: press p to resume" : "Press p to pause updates";
  const problem = store.get("pulse")?.problem, old = span(Math.max(0, Math.round((Date.now() - seenAt) / 1000) * 1000));
  document.body.classList.toggle("stale", Boolean(gone) && seenAt > 0);
  bar.hidden = !gone && !problem && name !== "paused";
  bar.className = name === "paused" ? "" : "bad";
  if (gone) {
    const next = Math.max(0, Math.ceil((gone.retryAt - Date.now()) / 1000));
    setContent(bar, "gone", () => [el("span", {}), el("button", { type: "button", onclick: () => live.open() }, "Try now")]);
    setText(bar.firstChild, `The server cannot be reached${seenAt ? `: what you see is ${old} old` : ""}. ${next ? `Next try in ${next} s.` : "Trying…"}`);
  } else if (problem) setContent(bar, `problem ${problem}`, () => `The server refuses writes: ${problem}`);
  else if (name === "paused") {
    setContent(bar, "paused", () => [el("span", {}), el("button", { type: "button", onclick: () => live.resume() }, "Resume")]);
    setText(bar.firstChild, `Updates are paused: what you see is ${old} old.`);
  }
}

// ── frame ──

const badge = () => {
  const dead = store.get("pulse")?.dead;
  return dead ? el("span", { class: "badge act" }, short(dead), el("span", { class: "unseen" }, " dead letters")) : null;
};

function showFrame() {
  const link = (name, isShort) => {
    const [text, , shape] = PAGES[name], is = (current.page ?? "overview") === name;
    return el("a", { href: path(...(name === "overview" ? [] : [name])), "aria-current": is ? "page" : null, onclick: () => byId("side").classList.remove("open") }, icon(shape), isShort ? { dead: "Dead" }[name] ?? text : text, name === "dead" && badge());
  };
  const names = Object.keys(PAGES).filter((name) => !(name in PART_OF) || !session || session.parts[PART_OF[name]]);
  const side = byId("side");
  setContent(side, `${names} ${current.page} ${store.get("pulse")?.dead} ${location.search}`, () => [
    el("a", { class: "brand", href: path() }, icon(LOGO), "Penstock"),
    el("nav", { "aria-label": "Pages" }, ...names.map((name) => link(name))),
    el("div", { id: "foot" }, themeButtons(), el("p", { class: "label" }, session ? `version ${session.version} · ` : "", el("a", { href: "/docs" }, "API"))),
  ]);
  setContent(byId("phone"), `${current.page} ${store.get("pulse")?.dead} ${location.search}`, () => [
    ...["overview", "queues", "dead"].map((name) => link(name, true)),
    el("button", { type: "button", onclick: () => byId("find").focus() }, icon(SEARCH), "Search"),
    el("button", { type: "button", "aria-label": "More pages", onclick: () => side.classList.toggle("open") }, icon("M4 7h16M4 12h16M4 17h16"), "More"),
  ]);
  if (!byId("search")) {
    byId("top").append(
      el("form", { id: "search", role: "search", onsubmit: (event) => { event.preventDefault(); search(byId("find").value.trim()); } },
        el("input", { id: "find", type: "search", placeholder: "Message id or name", "aria-label": "Find a message by its id, or a queue, topic or subscription by its name", autocomplete: "off", spellcheck: "false" }), el("kbd", { "aria-hidden": "true" }, "/")),
      el("span", { class: "spring" }), el("span", { id: "project" }), el("button", { id: "live", type: "button", class: "plain", onclick: togglePause }),
      el("button", { id: "clock", type: "button", class: "plain", title: "Switch between local time and UTC", onclick: () => { settings.isUtc = !settings.isUtc; keep("utc", settings.isUtc ? "yes" : "no"); tick(); route(true); } }));
  }
  const projects = session?.projects ?? [];
  setContent(byId("project"), `${projects} ${session?.project}`, () => projects.length > 1 && el("select", { "aria-label": "Project", onchange: (event) => { location.assign(`/console?project=${encodeURIComponent(event.target.value)}`); } },
    ...projects.map((name) => el("option", { value: name, selected: name === session.project }, name))));
  showLive();
}

function themeButtons() {
  const chosen = document.documentElement.dataset.theme ?? "system";
  return el("div", { class: "segments", role: "group", "aria-label": "Theme" }, ...["system", "light", "dark"].map((name) => el("button", { type: "button", "aria-pressed": String(name === chosen), onclick: (event) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    keep("theme", name === "system" ? "" : name);
    for (const one of event.currentTarget.parentNode.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
  } }, name)));
}

/** An id opens its message; a name opens what has it. */
async function search(text) {
  if (!text) return;
  for (const [kind, page] of [["queues", "queues"], ["subscriptions", "subscriptions"], ["topics", "topics"]]) {
    if (/^[0-9a-f]{30}$/.test(text)) break;
    try {
      const found = await get([kind], { filter: text, limit: 2 });
      const exact = found.rows.find((row) => row.name === text);
      if (exact) { navigate(path(page, text)); return; }
      if (found.matched) { navigate(withQuery({ filter: text }, path(page))); return; }
    } catch { /* what cannot be asked is not found */ }
  }
  navigate(path("message", text));
}

// ── navigation ──

export function navigate(url, { isReplaced = false } = {}) {
  if (url !== location.pathname + location.search) history[isReplaced ? "replaceState" : "pushState"](null, "", url);
  route();
}

/** Show the page of the address. A page that only gets other values in its query stays, if it can. */
async function route(isForced = false) {
  const [, first, ...all] = location.pathname.split("/"), [name = "overview", ...parts] = first === "console" ? all.filter(Boolean).map(decodeURIComponent) : [];
  const query = new URLSearchParams(location.search), isSame = !isForced && current.page === name && current.parts.join("/") === parts.join("/");
  if (isSame && current.query) { current.query(query); showFrame(); byId("main").dataset.shows = location.pathname + location.search; return; }
  if (!session) { current.isWaiting = true; return; }
  current.unmount?.();
  closeAll();
  unwatch();
  const mine = (current = { page: name, parts, unmount: null, query: null });
  showFrame();
  const main = byId("main");
  main.dataset.shows = "";
  let page;
  try {
    page = name in PAGES || name === "message" ? await import(`./pages/${name}.js`) : null;
  } catch { page = undefined; }
  if (mine !== current) return;
  if (!page) {
    main.dataset.shows = location.pathname + location.search;
    main.replaceChildren(empty(page === null ? "There is no such page." : "This page could not be loaded. Is the server running?", el("a", { class: "button", href: path() }, "Overview")));
    return;
  }
  main.dataset.shows = location.pathname + location.search;
  setTitle(parts[0] ?? PAGES[name]?.[0] ?? name);
  const mounted = page.mount(main, { parts, query, session });
  mine.unmount = mounted?.unmount ?? mounted;
  mine.query = mounted?.query ?? null;
  if (!isForced) { scrollTo(0, 0); if (document.activeElement === document.body || !document.activeElement?.closest("#side, #top")) main.focus({ preventScroll: true }); }
}

export function setTitle(text) {
  title = text;
  document.title = `${text} · Penstock`;
}

const togglePause = () => (live.state === "paused" ? live.resume() : live.state === "gone" ? live.open() : live.pause());

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || link.target || link.download) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !/^\/console(\/(?!static|api)|$)/.test(url.pathname)) return;
  event.preventDefault();
  navigate(url.pathname + url.search);
});
addEventListener("popstate", () => route());

// ── keys ──

let isAfterG = 0;
const KEYS = [["/", "search"], ["g then a letter", "go to a page: " + Object.values(PAGES).map(([text, key]) => `${key} ${text}`).join(", ")], ["j, k", "next and previous row"], ["Enter", "open the row"], ["x", "select the row"], ["p", "pause and resume updates"], ["?", "this help"]];

export function help() {
  const box = el("input", { type: "checkbox", checked: stored("keys") !== "off", onchange: () => keep("keys", box.checked ? "on" : "off") });
  return ask({ title: "Keys", label: "Close", content: [el("dl", { class: "facts" }, ...KEYS.flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])), el("label", { class: "check" }, box, "Use these keys")] });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog, .menu")) {
    if (event.key === "Escape" && event.target.id === "find") event.target.blur();
    return;
  }
  if (stored("keys") === "off" && event.key !== "?") return;
  const rows = [...document.querySelectorAll("main tbody tr, main .list > li")].filter((row) => row.querySelector("a"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const after = Date.now() - isAfterG < 1500;
  isAfterG = 0;
  if (after) {
    const found = Object.entries(PAGES).find(([, [, key]]) => key === event.key);
    if (found) navigate(path(...(found[0] === "overview" ? [] : [found[0]])));
  } else if (event.key === "g") isAfterG = Date.now();
  else if (event.key === "/") byId("find").focus();
  else if (event.key === "j" || event.key === "k") rows[event.key === "j" ? Math.min(at + 1, rows.length - 1) : Math.max(at - 1, 0)]?.querySelector("a").focus();
  else if (event.key === "x") rows[at]?.querySelector("input[type=checkbox]")?.click();
  else if (event.key === "p") togglePause();
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
});

// ── clock ──

function tick() {
  const now = settings.now();
  const node = byId("clock");
  if (node) setText(node, `${clock(now, settings.isUtc)} ${settings.isUtc ? "UTC" : "local"}`);
  for (const one of document.querySelectorAll("time[data-at]")) refreshTime(one);
  showLive();
}
setInterval(() => { if (!document.hidden) tick(); }, 1000);
document.addEventListener("visibilitychange", () => { if (document.hidden) live.hide(); else { live.show(); tick(); } });

store.watch("pulse", (pulse) => {
  showFrame();
  document.title = `${pulse.level === "bad" ? "✕ " : ""}${title} · Penstock`;
});
showFrame();
route();
live.open();
tick();
