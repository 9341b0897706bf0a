// Runs on every page: countdowns in lab time, and buttons that copy an id or a command.

import { labNow } from "./live.js";

const TICK_MS = 250;
const COPIED_MS = 1500; // for which a button says that it has copied
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

// The same words as duration_text in duration.py: the largest unit and the next one, rounded to the latter.
function durationText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const step = whole >= 86400 ? 3600 : whole >= 3600 ? 60 : 1;
  let left = Math.round(whole / step) * step;
  if (left === 0) return "less than a second";
  const parts = UNITS.map(([unit, length]) => {
    const count = Math.floor(left / length);
    left -= count * length;
    return count ? `${count} ${unit}` : "";
  });
  const first = parts.findIndex(Boolean);
  return parts.slice(first, first + 2).filter(Boolean).join(" ");
}

// data-before is a word in front of the duration, data-zero a text in place of both when the duration is over.
function updateCountdowns() {
  const now = labNow();
  for (const element of document.querySelectorAll("[data-countdown], [data-elapsed]")) {
    const { countdown, elapsed, before, zero } = element.dataset;
    const seconds = countdown === undefined ? now - Number(elapsed) : Number(countdown) - now;
    const isOver = zero !== undefined && Math.round(seconds) <= 0;
    const text = isOver ? zero : `${before ? `${before} ` : ""}${durationText(seconds)}`;
    if (element.textContent !== text) element.textContent = text;
  }
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    selectText(button); // the browser does not allow it: the user copies the selection
    return;
  }
  button.classList.add("copied");
  announce("Copied");
  setTimeout(() => button.classList.remove("copied"), COPIED_MS);
}

function selectText(button) {
  const code = button.parentElement.querySelector("code");
  if (code) getSelection().selectAllChildren(code);
}

function announce(text) {
  let line = document.getElementById("announcement");
  if (line === null) {
    line = document.createElement("p");
    line.id = "announcement";
    line.className = "visually-hidden";
    line.setAttribute("role", "status");
    document.body.append(line);
  }
  line.textContent = "";
  requestAnimationFrame(() => { line.textContent = text; });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button);
});
setInterval(updateCountdowns, TICK_MS);
