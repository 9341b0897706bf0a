// Updates VM states and the counts of the legend in place. Fetches the page again when VMs are added or removed, and
// while the user types into the search field.

import { live } from "./live.js";

const TYPING_PAUSE_MS = 250;
const STATE_LABELS = JSON.parse(document.body.dataset.vmStates); // what the server calls each state

const found = document.getElementById("found"); // on the fleet page only
const search = document.getElementById("search");
const changedVms = new Set(); // keys, until the next frame
const latestStates = new Map(); // key → { state, seq }: the state and the sequence number since which it is so
const fetchedAt = new WeakMap(); // section → the sequence number at which it was fetched
let elementsByVm = new Map(); // key → the elements that show this VM's state
let pendingFetch = null; // aborts the fetch under way
let typingTimer;

function indexElements() {
  elementsByVm = new Map();
  for (const element of document.querySelectorAll("[data-vm]")) {
    const elements = elementsByVm.get(element.dataset.vm);
    if (elements) elements.push(element);
    else elementsByVm.set(element.dataset.vm, [element]);
  }
}

function setState(element, state) {
  const text = STATE_LABELS[state] ?? state;
  if (element.classList.contains("cell")) {
    const label = element.ariaLabel;
    element.className = `cell ${state}`;
    element.ariaLabel = element.title = `${label.slice(0, label.lastIndexOf(","))}, ${text}`;
  } else {
    element.className = `state ${state}`;
    element.textContent = text;
  }
}

function showChangedVms() {
  for (const key of changedVms) showVm(key);
  changedVms.clear();
}

// Either the fetched section or the stream may be newer. The newer one counts, or a cell would show a state again that
// the VM has left.
function showVm(key) {
  const { state, seq } = latestStates.get(key);
  for (const element of elementsByVm.get(key) ?? []) {
    if (seq > (fetchedAt.get(element.closest("[data-live]")) ?? 0)) setState(element, state);
  }
}

live.addEventListener("change", ({ detail }) => {
  const isFirst = changedVms.size === 0;
  for (const [key, state] of detail.vms) {
    if (!elementsByVm.has(key)) continue;
    latestStates.set(key, { state, seq: detail.seq });
    changedVms.add(key);
  }
  if (isFirst && changedVms.size) requestAnimationFrame(showChangedVms);
  if (found && detail.kinds.includes("fleet")) refetch();
});

live.addEventListener("counts", ({ detail }) => {
  for (const element of document.querySelectorAll("[data-count]")) {
    const count = detail[element.dataset.count] ?? 0;
    const text = count.toLocaleString("en-US");
    if (element.textContent === text) continue;
    element.textContent = text;
    element.closest(".legend a")?.classList.toggle("none", count === 0);
  }
});

document.addEventListener("refreshed", ({ target, detail }) => {
  fetchedAt.set(target, detail.seq);
  indexElements();
  for (const [key, { seq }] of latestStates) {
    if (seq > detail.seq) showVm(key);
  }
});

// Replaces the results with those of the current address. The search field is outside of them and keeps its text.
async function refetch() {
  pendingFetch?.abort();
  pendingFetch = new AbortController();
  try {
    const response = await fetch(location.href, { signal: pendingFetch.signal, redirect: "manual", cache: "no-store" });
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = fresh.getElementById("found");
    if (!next || (!search && fresh.getElementById("search"))) return location.reload();
    found.replaceChildren(...next.childNodes);
    for (const section of found.querySelectorAll("[data-live]")) fetchedAt.set(section, Number(fresh.body.dataset.seq));
    indexElements();
    for (const key of latestStates.keys()) showVm(key);
  } catch (error) {
    if (error.name !== "AbortError") console.info("cannot fetch the page again:", error.message);
  }
}

search?.addEventListener("input", () => {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => {
    const query = new URLSearchParams(new FormData(search));
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    refetch();
  }, TYPING_PAUSE_MS);
});

indexElements();
