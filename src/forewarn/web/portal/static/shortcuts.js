// Keyboard shortcuts: `g` and a letter open a page, `/` goes to the search, `?` shows all of them. They never fire in a
// field or a dialog, and can be turned off, because speech input types letters (WCAG 2.1.4). The keys of pages are those
// of the links in the header.

import { openPalette } from "./palette.js";

const SEQUENCE_MS = 1500; // between the two keys of a sequence
const SETTING = "forewarn-single-key-shortcuts"; // in the browser's storage: "off", or nothing

const helpButton = document.getElementById("open-shortcuts");
const pageLinks = [...document.querySelectorAll("nav a[data-keys]")];
let dialog = null;
let firstKeyAt = -Infinity;

const isOn = () => localStorage.getItem(SETTING) !== "off";

function onKeyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented || !isOn()) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable]") || document.querySelector("dialog[open]")) return;
  const isSecondKey = event.timeStamp - firstKeyAt < SEQUENCE_MS;
  firstKeyAt = -Infinity;
  if (isSecondKey) {
    const link = pageLinks.find((each) => each.dataset.keys === `g ${event.key}`);
    if (!link) return;
    event.preventDefault();
    link.click();
  } else if (event.key === "g") {
    firstKeyAt = event.timeStamp;
  } else if (event.key === "/") {
    event.preventDefault();
    const search = document.querySelector('main input[type="search"]');
    if (search === null) return openPalette();
    search.focus();
    search.select();
  } else if (event.key === "?") {
    event.preventDefault();
    openHelp();
  }
}

function openHelp() {
  dialog ??= buildHelp();
  if (!dialog.open) dialog.showModal();
}

function buildHelp() {
  const made = document.createElement("dialog");
  made.className = "shortcuts";
  made.setAttribute("aria-labelledby", "shortcuts-title");
  const heading = document.createElement("h2");
  heading.id = "shortcuts-title";
  heading.textContent = "Keyboard shortcuts";
  const close = document.createElement("button");
  close.textContent = "Close";
  close.className = "second";
  close.addEventListener("click", () => made.close());
  made.append(heading, keyList(), setting(), close);
  made.addEventListener("click", (event) => event.target === made && made.close());
  document.body.append(made);
  return made;
}

function keyList() {
  const list = document.createElement("dl");
  list.className = "facts";
  const rows = [
    ["Ctrl K or ⌘ K", "Find a page, VM, host, scope, event, rollout or action"],
    ["/", "Go to the search of the page"],
    ...pageLinks.map((link) => [link.dataset.keys, `Open ${link.textContent}`]),
    ["?", "Show this list"],
    ["Esc", "Close a dialog"],
    ["+ − ← → Home", "Zoom and move the timeline, while it has the focus"],
  ];
  for (const [keys, text] of rows) {
    const term = document.createElement("dt");
    for (const key of keys.split(" ")) {
      const label = document.createElement(key === "or" ? "span" : "kbd");
      label.textContent = key;
      term.append(label, " ");
    }
    const description = document.createElement("dd");
    description.textContent = text;
    list.append(term, description);
  }
  return list;
}

function setting() {
  const line = document.createElement("p");
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = isOn();
  box.addEventListener("change", () =>
    box.checked ? localStorage.removeItem(SETTING) : localStorage.setItem(SETTING, "off"));
  label.append(box, " Use shortcuts without Ctrl or ⌘. Turn them off for speech input; Ctrl K always works.");
  line.append(label);
  return line;
}

document.addEventListener("keydown", onKeyDown);
if (helpButton) {
  helpButton.hidden = false;
  helpButton.addEventListener("click", openHelp);
}
