// What every page has: the clock that goes on, the banner, and sections that follow what happens.

import { live, labNow, labSpeed } from "./live.js";
import "./refresh.js";

const TICK_MS = 250;
const FLICKER_MS = 700; // a connection that is back by then was never missed
const CROWDED =
  "Other windows of this browser follow what happens, as many as it can bear. What you see here may be old until one of " +
  "them is closed.";
const OVER = "You are signed out. What you see may be old. ";
const LOST = "The connection is lost; trying again … What you see may be old.";

const banner = document.getElementById("banner");
const clock = document.getElementById("clock");
let troubled = ""; // what the service says of itself
let missed; // the timer until a lost connection is told
let isLost = false;
let isCrowded = false;
let isOver = false;

live.addEventListener("health", ({ detail }) => {
  troubled = detail.ok ? "" : detail.text;
  show();
});
live.addEventListener("lost", () => {
  missed ??= setTimeout(() => {
    isLost = true;
    show();
  }, FLICKER_MS);
});
live.addEventListener("crowded", () => {
  isCrowded = true;
  show();
});
live.addEventListener("found", () => {
  clearTimeout(missed);
  missed = undefined;
  isLost = isCrowded = false;
  show();
});
live.addEventListener("over", () => {
  isOver = true;
  show();
});

// One thing at a time, the one that explains the others first.
function show() {
  const text = isOver ? OVER : isLost ? LOST : isCrowded ? CROWDED : troubled;
  banner.classList.toggle("bad", text === troubled);
  banner.replaceChildren(text, ...(isOver ? [signIn()] : []));
  banner.hidden = !text;
}

function signIn() {
  const link = document.createElement("a");
  link.href = `/portal/sign-in?to=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in";
  return link;
}

function tick() {
  const shown = clock?.querySelector("time");
  if (!shown) return;
  const iso = new Date(labNow() * 1000).toISOString();
  if (shown.textContent === iso.slice(11, 19)) return;
  shown.textContent = iso.slice(11, 19);
  shown.dateTime = `${iso.slice(0, 19)}Z`;
  shown.title = `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

function tag() {
  const usual = labSpeed() === 1;
  const shown = clock?.querySelector(".tag") ?? (usual ? null : clock?.appendChild(document.createElement("span")));
  if (!shown) return;
  shown.className = "tag";
  shown.textContent = labSpeed() === 0 ? "paused" : `×${labSpeed()}`;
  shown.hidden = usual;
}

live.addEventListener("clock", () => {
  tick();
  tag();
});
setInterval(tick, TICK_MS);
