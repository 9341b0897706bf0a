// VMs as they change: cells and words of state are set in place, the counts of the legend too. The page is fetched anew
// where VMs come or go, and while somebody types into the search.

import { live } from "./live.js";

const TYPING_MS = 250;

const found = document.getElementById("found"); // on the fleet's page only
const search = document.getElementById("search");
const news = new Set(); // keys, until the next frame
const latest = new Map(); // key → how it is since which number of the history
const fetched = new WeakMap(); // section → the number of the history that it was fetched at
let shown = new Map(); // key → the elements that show this VM's state
let asked = null; // what aborts the fetch that is under way
let typing;

function learn() {
  shown = new Map();
  for (const element of document.querySelectorAll("[data-vm]")) {
    const alike = shown.get(element.dataset.vm);
    if (alike) alike.push(element);
    else shown.set(element.dataset.vm, [element]);
  }
}

function set(element, state) {
  if (element.classList.contains("cell")) {
    const label = element.ariaLabel;
    element.className = `cell ${state}`;
    element.ariaLabel = element.title = `${label.slice(0, label.lastIndexOf(","))}, ${state}`;
  } else {
    element.className = `state ${state}`;
    element.textContent = state;
  }
}

function draw() {
  for (const key of news) show(key);
  news.clear();
}

// Of the page and the stream, either may be ahead of the other: what is later counts, or a grid would show a state that
// it never was in.
function show(key) {
  const { state, seq } = latest.get(key);
  for (const element of shown.get(key) ?? []) {
    if (seq > (fetched.get(element.closest("[data-live]")) ?? 0)) set(element, state);
  }
}

live.addEventListener("change", ({ detail }) => {
  const isFirst = news.size === 0;
  for (const [key, state] of detail.vms) {
    if (!shown.has(key)) continue;
    latest.set(key, { state, seq: detail.seq });
    news.add(key);
  }
  if (isFirst && news.size) requestAnimationFrame(draw);
  if (found && detail.what.includes("fleet")) refetch();
});

live.addEventListener("counts", ({ detail }) => {
  for (const element of document.querySelectorAll("[data-count]")) {
    const count = String(detail[element.dataset.count] ?? 0);
    if (element.textContent !== count) element.textContent = count;
  }
});

document.addEventListener("refreshed", ({ target, detail }) => {
  fetched.set(target, detail.seq);
  learn();
  for (const [key, { seq }] of latest) {
    if (seq > detail.seq) show(key);
  }
});

// The same page with what is there now; what is typed stays, as it stands outside.
async function refetch() {
  asked?.abort();
  asked = new AbortController();
  try {
    const answer = await fetch(location.href, { signal: asked.signal, redirect: "manual", cache: "no-store" });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = fresh.getElementById("found");
    if (!next || (!search && fresh.getElementById("search"))) return location.reload();
    found.replaceChildren(...next.childNodes);
    for (const section of found.querySelectorAll("[data-live]")) fetched.set(section, Number(fresh.body.dataset.seq));
    learn();
    for (const key of latest.keys()) show(key);
  } catch (error) {
    if (error.name !== "AbortError") console.info("the page could not be fetched anew:", error.message);
  }
}

search?.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const wanted = new URLSearchParams(new FormData(search));
    for (const [name, value] of [...wanted]) if (!value) wanted.delete(name);
    history.replaceState(null, "", wanted.size ? `?${wanted}` : location.pathname);
    refetch();
  }, TYPING_MS);
});

learn();
