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
let isStoreHealthy = true;

live.addEventListener("change", (event) => markSections(isOneOf(topicsOf(event.detail))));
live.addEventListener("polling", (event) => markSections(showsPolling(event.detail)));
live.addEventListener("clock", () => markSections((topic) => topic === "clock"));
live.addEventListener("hold", ({ detail }) => showHold(detail.html));
live.addEventListener("nodes", () => markSections((topic) => topic === "nodes"));
live.addEventListener("reset", () => markSections(() => true));
live.addEventListener("health", ({ detail }) => {
  if (detail.ok !== isStoreHealthy) markSections((topic) => topic === "health");
  isStoreHealthy = detail.ok;
});

// Shows the banner about the hold on all rollouts as the server renders it, empty and hidden if there is none.
function showHold(html) {
  const hold = document.getElementById("hold");
  const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("hold");
  if (hold.outerHTML === fresh.outerHTML) return;
  morph(hold, fresh);
  markSections((topic) => topic === "hold");
}

function topicsOf({ scopes, events, requests, hosts, vms, kinds }) {
  const topics = new Set(["all"]);
  const add = (kind, names) => names.forEach((name) => topics.add(`${kind}:${name}`));
  add("scope", scopes);
  add("event", events);
  add("request", requests);
  add("host", hosts);
  add("vm", vms.map(([key]) => key));
  if (requests.length) topics.add("requests");
  if (hosts.length || kinds.includes("host")) topics.add("hosts");
  if (kinds.includes("fault")) topics.add("faults");
  if (vms.length || kinds.includes("fleet")) topics.add("fleet");
  return topics;
}

function isOneOf(topics) {
  return (topic) => topics.has(topic);
}

// Polling is shown with its scope and on the clients page. `scopes` is null when any scope may have changed.
function showsPolling({ scopes }) {
  if (scopes === null) return (topic) => topic === "polling" || topic.startsWith("scope:");
  return isOneOf(new Set(["polling", ...scopes.map((id) => `scope:${id}`)]));
}

// Marks the sections with a topic for which `concerns` is true, and schedules a fetch.
function markSections(concerns) {
  for (const section of document.querySelectorAll("[data-live][id]")) {
    if (topicsOfSection(section).some(concerns)) dueSections.add(section.id);
  }
  scheduleRefresh();
}

// Fetches the section with this id again, soon.
export function refreshSection(id) {
  dueSections.add(id);
  scheduleRefresh();
}

function scheduleRefresh() {
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
    const fresh = await fetchPage();
    if (fresh !== null) await showSections(fresh, ids);
  } finally {
    const now = performance.now();
    nextFetchAt = now + Math.max(MIN_PAUSE_MS, (now - startedAt) * PAUSE_FACTOR);
    timer = null;
    scheduleRefresh();
  }
}

// This page as it is now; null if it cannot be fetched. The live stream notices when the service is down.
// A page with a wrong filter has an error status and its sections; other pages with an error have no sections.
async function fetchPage() {
  try {
    const response = await fetch(location.href, { redirect: "manual", cache: "no-store" });
    if (response.type === "opaqueredirect") signedOut();
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    return response.ok || fresh.querySelector("[data-live][id]") !== null ? fresh : null;
  } catch {
    return null;
  }
}

// Shows one section per frame: parsing and showing all of them in one frame would take too long.
// Dispatches "refreshed" on each section: a script that has shown newer changes there applies them again.
async function showSections(fresh, ids) {
  const seq = Number(fresh.body.dataset.seq);
  for (const next of fresh.querySelectorAll("[data-live][id]")) {
    if (document.getElementById(next.id) === null) addSection(next, seq);
  }
  for (const id of ids) {
    const next = fresh.getElementById(id);
    const html = next?.outerHTML;
    if (next !== null && lastHtml.get(id) === html) continue;
    await new Promise(requestAnimationFrame);
    const section = document.getElementById(id);
    if (section === null) continue;
    if (next === null) section.remove();
    else changeSection(section, next, html, seq);
  }
}

function changeSection(section, next, html, seq) {
  lastHtml.set(section.id, html);
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
