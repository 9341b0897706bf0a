// Sections that follow what happens: <section id="…" data-live="TOPIC …"> is fetched again from the page's own address
// when a change concerns one of its topics, and what is new in it is put in place. See live.js for what is told.

import { live, end } from "./live.js";
import { morph } from "./morph.js";

const SOONEST_MS = 250; // between two fetches
const SHARE = 4; // of which at most one part in so many is spent fetching

const due = new Set(); // ids of sections
const known = new Map(); // id → its HTML as the service last sent it
const topicsIn = new Map(); // the text of data-live → its topics
let timer = null;
let rested = 0; // when the next fetch may begin

live.addEventListener("change", (event) => mark(within(topicsOf(event.detail))));
live.addEventListener("asking", (event) => mark(showsAsking(event.detail)));
live.addEventListener("clock", () => mark((topic) => topic === "clock"));
live.addEventListener("reset", () => mark(() => true));

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

function within(topics) {
  return (topic) => topics.has(topic);
}

// Whoever asks is shown with their scope, or among all of them; without scopes, it may be any.
function showsAsking({ scopes }) {
  if (scopes === null) return (topic) => topic === "asking" || topic.startsWith("scope:");
  return within(new Set(["asking", ...scopes.map((id) => `scope:${id}`)]));
}

// Sections of which a topic is concerned.
function mark(concerns) {
  for (const section of document.querySelectorAll("[data-live][id]")) {
    if (wanted(section).some(concerns)) due.add(section.id);
  }
  if (due.size && timer === null) timer = setTimeout(refresh, Math.max(0, rested - performance.now()));
}

function wanted(section) {
  const text = section.dataset.live;
  if (!topicsIn.has(text)) topicsIn.set(text, text.split(/\s+/).filter(Boolean).map(decodeURIComponent));
  return topicsIn.get(text);
}

async function refresh() {
  const ids = [...due];
  due.clear();
  const began = performance.now();
  try {
    const text = await read();
    if (text !== null) {
      const fresh = new DOMParser().parseFromString(text, "text/html");
      await new Promise(requestAnimationFrame); // reading and showing it are not both done within one frame
      show(fresh, ids);
    }
  } finally {
    const now = performance.now();
    rested = now + Math.max(SOONEST_MS, (now - began) * (SHARE - 1));
    timer = null;
    if (due.size) mark(() => false);
  }
}

// The page as it is now; null where it cannot be had. The stream notices by itself when the service is away.
async function read() {
  try {
    const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
    if (answer.type === "opaqueredirect") end();
    return answer.ok ? await answer.text() : null;
  } catch {
    return null;
  }
}

// Whoever has shown later changes in a section puts them there again: the page may be older than they are.
function show(fresh, ids) {
  const seq = Number(fresh.body.dataset.seq);
  for (const next of fresh.querySelectorAll("[data-live][id]")) {
    if (document.getElementById(next.id) === null) add(next, seq);
  }
  for (const id of ids) {
    const [section, next] = [document.getElementById(id), fresh.getElementById(id)];
    if (section === null || (next !== null && known.get(id) === next.outerHTML)) continue;
    if (next === null) section.remove();
    else change(section, next, seq);
  }
}

function change(section, next, seq) {
  known.set(section.id, next.outerHTML);
  const focused = document.activeElement;
  morph(section, next);
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // it moved
  tell(section, seq);
}

// A section that was not there before, behind the one that it stands behind.
function add(next, seq) {
  let before = next.previousElementSibling;
  while (before !== null && !(before.id && document.getElementById(before.id))) before = before.previousElementSibling;
  if (before === null) return;
  const section = document.importNode(next, true);
  document.getElementById(before.id).after(section);
  tell(section, seq);
}

function tell(section, seq) {
  section.dispatchEvent(new CustomEvent("refreshed", { bubbles: true, detail: { seq } }));
}
