// The drawing under the hand: now goes on, and time is moved and stretched by wheel, drag, pinch and keys. While a hand
// is on it, everything is only put in another place; once it rests, the page is read anew for the time in view.

import { labNow } from "./live.js";
import { morph } from "./morph.js";

const SPANS = { 300: "5m", 900: "15m", 3600: "1h", 21600: "6h", 86400: "1d", 604800: "7d", 1209600: "14d" };
const [SHORTEST_S, LONGEST_S] = [60, 31 * 86400];
const REST_MS = 250; // without a move, until the page is read anew
const FOLLOW_MS = 2000; // between two readings that only follow now
const BEYOND = 10; // percent outside of the view, where nothing needs to be drawn exactly any more
const LEFT_OF = 55; // percent: words of bars that begin further right end with the bar
const DRAG_PX = 4; // less is a click
const DRIFT = 0.1; // of the span, that now may be off the middle

const section = document.getElementById("timeline"); // none on an event's own page, where only now moves
const view = { centre: 0, span: 1, follows: false };
const hands = new Map(); // pointers that are down → where
let isHeld = false; // by a hand that has moved
let resting = null; // the timer until the page is read anew
let reading = null; // what can stop that
let readAt = 0;

const chart = () => document.getElementById("chart");
const since = () => view.centre - view.span / 2;
const within = (least, value, most) => Math.min(most, Math.max(least, value));
const place = (at) => within(-BEYOND, (100 * (at - since())) / view.span, 100 + BEYOND);

// Take over the time that the page was drawn for, unless a hand is moving it.
function adopt() {
  const drawn = chart();
  if (drawn === null) return;
  if (section !== null) drawn.classList.add("lively");
  if (isHeld || resting !== null) return draw();
  const [from, to] = [Number(drawn.dataset.since), Number(drawn.dataset.until)];
  Object.assign(view, { centre: (from + to) / 2, span: to - from, follows: section?.dataset.follows === "yes" });
  drawNow();
}

function draw() {
  for (const part of chart()?.querySelectorAll("[data-at], rect[data-since], text[data-since]") ?? []) put(part);
  drawNow();
}

function put(part) {
  const { at, since: from, until: to } = part.dataset;
  if (part.localName === "text" && from !== undefined) return putWords(part, Number(from), Number(to));
  if (part.localName === "rect") return stretch(part, Number(from), to === "" ? labNow() : Number(to));
  const x = `${place(Number(at))}%`;
  for (const name of part.localName === "line" ? ["x1", "x2"] : ["x"]) part.setAttribute(name, x);
}

function stretch(part, from, to) {
  const x = place(from);
  part.setAttribute("x", `${x}%`);
  part.setAttribute("width", `${Math.max(0, place(to) - x)}%`);
}

function putWords(part, from, to) {
  const begins = Math.max(0, place(from));
  const ends = begins > LEFT_OF;
  part.setAttribute("text-anchor", ends ? "end" : "start");
  part.setAttribute("x", `${ends ? Math.min(100, place(to)) : begins}%`);
}

function drawNow() {
  const x = `${place(labNow())}%`;
  for (const line of chart()?.querySelectorAll("[data-now]") ?? []) {
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
  }
  for (const part of chart()?.querySelectorAll('rect[data-until=""]') ?? []) put(part);
}

let drawnFor = 0;
function goOn() {
  const now = labNow();
  if (Math.abs(now - drawnFor) > view.span / 5000) {
    drawnFor = now;
    drawNow();
    if (section === null) makeRoomFor(now);
    else if (view.follows && !isHeld && Math.abs(now - view.centre) > view.span * DRIFT) follow(now);
  }
  requestAnimationFrame(goOn);
}

// On an event's own page the bar grows with it.
function makeRoomFor(now) {
  const from = since();
  if (now < from + view.span || !chart()?.querySelector('rect[data-until=""]')) return;
  view.span = (now - from) * 1.1;
  view.centre = from + view.span / 2;
  draw();
}

function follow(now) {
  view.centre = now;
  draw();
  if (resting === null && performance.now() - readAt > FOLLOW_MS) readSoon();
}

// By how much time, and around which instant.
function move(by) {
  view.follows = false;
  view.centre += by;
  draw();
  readSoon();
}

function zoom(factor, around) {
  const span = within(SHORTEST_S, view.span * factor, LONGEST_S);
  if (!view.follows) view.centre = around + (view.centre - around) * (span / view.span);
  view.span = span;
  draw();
  readSoon();
}

function readSoon() {
  reading?.abort();
  clearTimeout(resting);
  resting = setTimeout(read, REST_MS);
}

async function read() {
  readAt = performance.now();
  const url = new URL(location.href);
  const span = Math.round(view.span);
  if (span !== Number(section.dataset.span)) url.searchParams.set("span", SPANS[span] ?? `${span}s`);
  if (view.follows) url.searchParams.delete("at");
  else url.searchParams.set("at", new Date(view.centre * 1000).toISOString().replace(/\.\d+Z$/, "Z"));
  history.replaceState(history.state, "", url);
  reading = new AbortController();
  try {
    const answer = await fetch(url, { redirect: "manual", cache: "no-store", signal: reading.signal });
    const next = answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
    resting = null;
    const fresh = next?.getElementById("timeline");
    if (fresh && !isHeld) morph(section, fresh);
    adopt();
  } catch (error) {
    if (error.name !== "AbortError") resting = null; // the stream notices that the service is away
  }
}

// The instant under a point of the screen.
function instantAt(clientX) {
  const box = chart().querySelector(".plot").getBoundingClientRect();
  return since() + ((clientX - box.left) / box.width) * view.span;
}

const secondsPerPx = () => view.span / chart().querySelector(".plot").getBoundingClientRect().width;
const middle = (points) => points.reduce((sum, x) => sum + x, 0) / points.length;
const spread = (points) => Math.max(...points) - Math.min(...points);

function onWheel(event) {
  const target = event.target.closest(".plot, .axis");
  if (target === null) return;
  if (event.ctrlKey || event.metaKey || target.classList.contains("axis")) {
    event.preventDefault();
    zoom(Math.exp(within(-0.5, event.deltaY * (event.deltaMode ? 0.05 : 0.003), 0.5)), instantAt(event.clientX));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    move((event.deltaX || event.deltaY) * secondsPerPx());
  }
}

function onDown(event) {
  if (event.button === 0 && event.target.closest(".plot, .axis")) hands.set(event.pointerId, event.clientX);
}

function onMove(event) {
  if (!hands.has(event.pointerId)) return;
  const before = [...hands.values()];
  if (!isHeld && hands.size === 1 && Math.abs(event.clientX - before[0]) < DRAG_PX) return;
  isHeld = true;
  chart().classList.add("held");
  hands.set(event.pointerId, event.clientX);
  const after = [...hands.values()];
  if (after.length > 1 && spread(after) > 0) zoom(spread(before) / spread(after), instantAt(middle(after)));
  move((middle(before) - middle(after)) * secondsPerPx());
}

function onUp(event) {
  if (!hands.delete(event.pointerId) || hands.size || !isHeld) return;
  chart().classList.remove("held");
  readSoon();
  setTimeout(() => (isHeld = false)); // the click that ends a drag is no click
}

function onKey(event) {
  if (event.target !== chart() || event.ctrlKey || event.metaKey || event.altKey) return;
  const around = view.centre;
  const deeds = {
    "+": () => zoom(0.5, around),
    "=": () => zoom(0.5, around),
    "-": () => zoom(2, around),
    ArrowLeft: () => move(-view.span / 8),
    ArrowRight: () => move(view.span / 8),
    Home: () => {
      view.follows = true;
      follow(labNow());
      readSoon();
    },
  };
  if (!(event.key in deeds)) return;
  event.preventDefault();
  deeds[event.key]();
}

if (section !== null) {
  section.addEventListener("wheel", onWheel, { passive: false });
  section.addEventListener("pointerdown", onDown);
  addEventListener("pointermove", onMove);
  addEventListener("pointerup", onUp);
  addEventListener("pointercancel", onUp);
  section.addEventListener("keydown", onKey);
  section.addEventListener("click", (event) => isHeld && event.preventDefault(), { capture: true });
  section.addEventListener("dragstart", (event) => event.preventDefault());
}
addEventListener("refreshed", adopt);
adopt();
requestAnimationFrame(goOn);
