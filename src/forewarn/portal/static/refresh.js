// Keeps sections up to date: <section id="…" data-live="TOPIC …"> is fetched again from the page's own address when a
// change concerns one of its topics, and morphed into the new one. See live.js for the messages.

import { live, signedOut } from "./live.js";
import { morph } from "./morph.js";

const MIN_PAUSE_MS = 250; // between two fetches
const PAUSE_FACTOR = 3; // a pause lasts this many times as long as the fetch before it

const dueSections = new Set(); // ids
const lastHtml = new Map(); // id → its HTML as the server last sent it
const topicsByText = new Map(); // the text of data-live → its topics
let timer = null;
let nextFetchAt = 0;

live.addEventListener("change", (event) => markSections(isOneOf(topicsOf(event.detail))));
live.addEventListener("asking", (event) => markSections(showsPolling(event.detail)));
live.addEventListener("clock", () => markSections((topic) => topic === "clock"));
live.addEventListener("reset", () => markSections(() => true));

function topicsOf({ scopes, events, requests, hosts, vms, what }) {
  const topics = new Set(["all"]);
  const add = (kind, names) => names.forEach((name) => topics.add(`${kind}:${name}`));
  add("scope", scopes);
  add("event", events);
  add("request", requests);
  add("host", hosts);
  add("vm", vms.map(([key]) => key));
  if (requests.length) topics.add("requests");
  if (hosts.length || what.includes("host")) topics.add("hosts");
  if (what.includes("fault")) topics.add("faults");
  if (vms.length || what.includes("fleet")) topics.add("fleet");
  return topics;
}

function isOneOf(topics) {
  return (topic) => topics.has(topic);
}

// Polling is shown with its scope and on the clients page. `scopes` is null when any scope may have changed.
function showsPolling({ scopes }) {
  if (scopes === null) return (topic) => topic === "asking" || topic.startsWith("scope:");
  return isOneOf(new Set(["asking", ...scopes.map((id) => `scope:${id}`)]));
}

// Marks the sections with a topic for which `concerns` is true, and schedules a fetch.
function markSections(concerns) {
  for (const section of document.querySelectorAll("[data-live][id]")) {
    if (topicsOfSection(section).some(concerns)) dueSections.add(section.id);
  }
  if (dueSections.size && timer === null) timer = setTimeout(refresh, Math.max(0, nextFetchAt - performance.now()));
}

function topicsOfSection(section) {
  const text = section.dataset.live;
  if (!topicsByText.has(text)) topicsByText.set(text, text.split(/\s+/).filter(Boolean).map(decodeURIComponent));
  return topicsByText.get(text);
}

async function refresh() {
  const ids = [...dueSections];
  dueSections.clear();
  const startedAt = performance.now();
  try {
    const text = await fetchPage();
    if (text !== null) {
      const fresh = new DOMParser().parseFromString(text, "text/html");
      await new Promise(requestAnimationFrame); // parsing and showing it in one frame would take too long
      showSections(fresh, ids);
    }
  } finally {
    const now = performance.now();
    nextFetchAt = now + Math.max(MIN_PAUSE_MS, (now - startedAt) * PAUSE_FACTOR);
    timer = null;
    if (dueSections.size) markSections(() => false);
  }
}

// The HTML of this page now; null if it cannot be fetched. The live stream notices when the service is down.
async function fetchPage() {
  try {
    const response = await fetch(location.href, { redirect: "manual", cache: "no-store" });
    if (response.type === "opaqueredirect") signedOut();
    return response.ok ? await response.text() : null;
  } catch {
    return null;
  }
}

// Dispatches "refreshed" on each section: a script that has shown newer changes there applies them again.
function showSections(fresh, ids) {
  const seq = Number(fresh.body.dataset.seq);
  for (const next of fresh.querySelectorAll("[data-live][id]")) {
    if (document.getElementById(next.id) === null) addSection(next, seq);
  }
  for (const id of ids) {
    const [section, next] = [document.getElementById(id), fresh.getElementById(id)];
    if (section === null || (next !== null && lastHtml.get(id) === next.outerHTML)) continue;
    if (next === null) section.remove();
    else changeSection(section, next, seq);
  }
}

function changeSection(section, next, seq) {
  lastHtml.set(section.id, next.outerHTML);
  const focused = document.activeElement;
  morph(section, next);
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // it moved
  dispatchRefreshed(section, seq);
}

// Inserts a new section after the element that precedes it on the fetched page.
function addSection(next, seq) {
  let before = next.previousElementSibling;
  while (before !== null && !(before.id && document.getElementById(before.id))) before = before.previousElementSibling;
  if (before === null) return;
  const section = document.importNode(next, true);
  document.getElementById(before.id).after(section);
  dispatchRefreshed(section, seq);
}

function dispatchRefreshed(section, seq) {
  section.dispatchEvent(new CustomEvent("refreshed", { bubbles: true, detail: { seq } }));
}
