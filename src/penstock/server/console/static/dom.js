// Elements from values. All values become text nodes: nothing in a message, a name or an error can become markup.

import { ago, exact, middle, visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value !== "string" && typeof value !== "number") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== "" && child !== 0));
  return node;
}

export const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** Set a text only if it differs, so that a selection in it survives an update. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Replace what is in a node only if what it shows has changed; `key` says what it shows. */
export function setContent(node, key, make) {
  if (node.dataset.shows === key) return;
  node.dataset.shows = key;
  node.replaceChildren(...[make()].flat().filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
}

const children = new WeakMap();

/** Keep the children of a node in step with a list: nodes stay with their key, so focus, selection and scroll do, too. */
export function keyed(parent, items, keyOf, create, update) {
  const known = children.get(parent) ?? children.set(parent, new Map()).get(parent), wanted = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = String(keyOf(item));
    wanted.add(key);
    let node = known.get(key);
    if (!node) known.set(key, (node = create(item)));
    update?.(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const [key, node] of known) if (!wanted.has(key)) { node.remove(); known.delete(key); }
}

// ── states with a glyph ──

const STATES = {
  ok: ["●", "good"], done: ["●", "good"], acked: ["●", "good"], closed: ["●", "good"], healthy: ["●", "good"], running: ["●", "good"], active: ["●", "good"], live: ["●", "good"],
  leased: ["◐", "accent"], working: ["◐", "accent"], "half open": ["◐", "warn"], waiting: ["○", "soft"], idle: ["○", "soft"], connecting: ["○", "soft"], delayed: ["◔", "warn"], retrying: ["◔", "warn"], detached: ["◌", "warn"],
  dead: ["✕", "bad"], open: ["✕", "bad"], failed: ["✕", "bad"], gone: ["✕", "bad"], "dead again": ["✕", "bad"], stopped: ["■", "warn"], stalled: ["■", "warn"], paused: ["‖", "warn"], growing: ["▲", "warn"], full: ["▲", "bad"],
};

/** A state as a glyph and a word. */
export function state(name, word = name) {
  const [glyph, mood] = STATES[name] ?? ["·", "soft"];
  return el("span", { class: `state ${mood}` }, el("i", { "aria-hidden": "true" }, glyph), word);
}

// ── times that are updated ──

export const settings = { isUtc: false, now: () => Date.now() };

/** "5 min ago", kept up to date, with the exact time on hover. */
export function time(at, isExact = false) {
  if (at === null || at === undefined) return el("span", { class: "soft" }, "–");
  const node = el("time", { datetime: new Date(at).toISOString(), title: exact(at, settings.isUtc) });
  node.dataset.at = at;
  if (isExact) node.dataset.exact = "";
  refreshTime(node);
  return node;
}

export function refreshTime(node) {
  const at = Number(node.dataset.at);
  setText(node, "exact" in node.dataset ? exact(at, settings.isUtc).slice(11, 23) : ago(at, settings.now()));
}

// ── small parts ──

export function toast(text, kind = "") {
  const node = el("div", { class: `toast ${kind}` }, text);
  byId("toasts").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 5000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser does not allow copying: select the text instead", "bad");
  }
}

const copyIcon = () => icon("M9 9h10v10H9zM5 15V5h10");

export const copyButton = (text, label = "Copy") => el("button", { type: "button", class: "plain icon", title: label, "aria-label": label, onclick: () => copy(text) }, copyIcon());

/** A command in a frame, with a button that copies it. */
export const command = (text) => el("span", { class: "command" }, el("code", {}, text), copyButton(text, "Copy the command"));

/** An id that leads to the page of its message. */
export const messageLink = (id, size = 16) => el("a", { class: "id", href: path("message", id), title: id }, visible(middle(id, size)));

/** A text in which the ids of messages are links. */
export const withIds = (text) => text.split(/\b([0-9a-f]{30})\b/).map((part, index) => (index % 2 ? messageLink(part, 14) : part));

export const icon = (shape) => svg("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: shape }));

/** Nothing to show: one sentence, and what to do. */
export const empty = (text, ...more) => el("div", { class: "empty" }, el("p", {}, text), ...more);

export const facts = (pairs) => el("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

export const fromQuery = (name) => new URLSearchParams(location.search).get(name);

/** The address of a page; every part is encoded, and the project stays. */
export function path(...parts) {
  const project = fromQuery("project");
  return ["/console", ...parts.map(encodeURIComponent)].join("/") + (project ? `?project=${encodeURIComponent(project)}` : "");
}

/** An address with other values in its query, of this page or of another one; null removes one. */
export function withQuery(changes, target = location.pathname + location.search) {
  const url = new URL(target, location.origin);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  return url.pathname + url.search;
}
