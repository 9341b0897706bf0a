// Moves and zooms the timeline chart by wheel, drag, pinch and keys, and keeps the line of the current time moving.
// During a gesture the script only moves the elements of the chart; after it, it fetches the page for the time in view.

import { labNow } from "./live.js";
import { morph } from "./morph.js";

const SPANS = { 300: "5m", 900: "15m", 3600: "1h", 21600: "6h", 86400: "1d", 604800: "7d", 1209600: "14d" };
const [MIN_SPAN_S, MAX_SPAN_S] = [60, 31 * 86400];
const FETCH_DELAY_MS = 250; // without a move, until the page is fetched again
const FOLLOW_INTERVAL_MS = 2000; // between two fetches that only follow the current time
const OFFSCREEN_PERCENT = 10; // positions outside of the view are clamped to this
const MIN_DRAG_PX = 4; // less is a click
const MAX_DRIFT = 0.1; // share of the span by which the current time may be off the centre

const section = document.getElementById("timeline"); // null on an event page, where only the current time moves
const view = { centre: 0, span: 1, follows: false };
const pointers = new Map(); // id of each pressed pointer → its clientX
let isDragging = false;
let fetchTimer = null; // until the page is fetched again
let pendingFetch = null; // aborts the fetch under way
let fetchedAt = 0;

const chart = () => document.getElementById("chart");
const since = () => view.centre - view.span / 2;
const clamp = (least, value, most) => Math.min(most, Math.max(least, value));
const percentAt = (at) => clamp(-OFFSCREEN_PERCENT, (100 * (at - since())) / view.span, 100 + OFFSCREEN_PERCENT);

// Takes over the time window of the chart on the page, unless the user is moving it.
function adoptWindow() {
  const element = chart();
  if (element === null) return;
  if (section !== null) element.classList.add("interactive");
  if (isDragging || fetchTimer !== null) return redraw();
  const [from, to] = [Number(element.dataset.since), Number(element.dataset.until)];
  Object.assign(view, { centre: (from + to) / 2, span: to - from, follows: section?.dataset.follows === "yes" });
  redrawNow();
}

function redraw() {
  for (const part of chart()?.querySelectorAll("svg [data-at], rect[data-since]") ?? []) position(part);
  redrawNow();
}

function position(part) {
  const { at, since: from, until: to } = part.dataset;
  if (part.localName === "rect") return positionSegment(part, Number(from), to === "" ? labNow() : Number(to));
  const x = `${percentAt(Number(at))}%`;
  for (const name of part.localName === "line" ? ["x1", "x2"] : ["x"]) part.setAttribute(name, x);
}

function positionSegment(part, from, to) {
  const x = percentAt(from);
  part.setAttribute("x", `${x}%`);
  part.setAttribute("width", `${Math.max(0, percentAt(to) - x)}%`);
}

function redrawNow() {
  const x = `${percentAt(labNow())}%`;
  for (const part of chart()?.querySelectorAll("[data-now]") ?? []) {
    for (const name of part.localName === "line" ? ["x1", "x2"] : ["x"]) part.setAttribute(name, x);
  }
  for (const part of chart()?.querySelectorAll('rect[data-until=""]') ?? []) position(part);
}

let shownNow = 0;
function onFrame() {
  const now = labNow();
  if (Math.abs(now - shownNow) > view.span / 5000) {
    shownNow = now;
    redrawNow();
    if (section === null) growWindow(now);
    else if (view.follows && !isDragging && Math.abs(now - view.centre) > view.span * MAX_DRIFT) follow(now);
  }
  requestAnimationFrame(onFrame);
}

// On an event page the window grows with the bar.
function growWindow(now) {
  const from = since();
  if (now < from + view.span || !chart()?.querySelector('rect[data-until=""]')) return;
  view.span = (now - from) * 1.1;
  view.centre = from + view.span / 2;
  redraw();
}

function follow(now) {
  view.centre = now;
  redraw();
  if (fetchTimer === null && performance.now() - fetchedAt > FOLLOW_INTERVAL_MS) fetchSoon();
}

function move(bySeconds) {
  view.follows = false;
  view.centre += bySeconds;
  redraw();
  fetchSoon();
}

// Keeps the instant `around` in its place, or the current time in the centre while the chart follows it.
function zoom(factor, around) {
  const span = clamp(MIN_SPAN_S, view.span * factor, MAX_SPAN_S);
  if (!view.follows) view.centre = around + (view.centre - around) * (span / view.span);
  view.span = span;
  redraw();
  fetchSoon();
}

function fetchSoon() {
  pendingFetch?.abort();
  clearTimeout(fetchTimer);
  fetchTimer = setTimeout(fetchChart, FETCH_DELAY_MS);
}

async function fetchChart() {
  fetchedAt = performance.now();
  const url = new URL(location.href);
  const span = Math.round(view.span);
  if (span !== Number(section.dataset.span)) url.searchParams.set("span", SPANS[span] ?? `${span}s`);
  if (view.follows) url.searchParams.delete("at");
  else url.searchParams.set("at", new Date(view.centre * 1000).toISOString().replace(/\.\d+Z$/, "Z"));
  history.replaceState(history.state, "", url);
  pendingFetch = new AbortController();
  try {
    const response = await fetch(url, { redirect: "manual", cache: "no-store", signal: pendingFetch.signal });
    const next = response.ok ? new DOMParser().parseFromString(await response.text(), "text/html") : null;
    fetchTimer = null;
    const fresh = next?.getElementById("timeline");
    if (fresh && !isDragging) morph(section, fresh);
    adoptWindow();
  } catch (error) {
    if (error.name !== "AbortError") fetchTimer = null; // the live stream notices when the service is down
  }
}

// The instant at a horizontal position on the screen.
function instantAt(clientX) {
  const box = chart().querySelector(".plot").getBoundingClientRect();
  return since() + ((clientX - box.left) / box.width) * view.span;
}

const secondsPerPx = () => view.span / chart().querySelector(".plot").getBoundingClientRect().width;
const mean = (points) => points.reduce((sum, x) => sum + x, 0) / points.length;
const spread = (points) => Math.max(...points) - Math.min(...points);

function onWheel(event) {
  const target = event.target.closest(".plot, .axis");
  if (target === null) return;
  if (event.ctrlKey || event.metaKey || target.classList.contains("axis")) {
    event.preventDefault();
    zoom(Math.exp(clamp(-0.5, event.deltaY * (event.deltaMode ? 0.05 : 0.003), 0.5)), instantAt(event.clientX));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    move((event.deltaX || event.deltaY) * secondsPerPx());
  }
}

function onPointerDown(event) {
  if (event.button === 0 && event.target.closest(".plot, .axis")) pointers.set(event.pointerId, event.clientX);
}

function onPointerMove(event) {
  if (!pointers.has(event.pointerId)) return;
  const before = [...pointers.values()];
  if (!isDragging && pointers.size === 1 && Math.abs(event.clientX - before[0]) < MIN_DRAG_PX) return;
  isDragging = true;
  chart().classList.add("dragging");
  pointers.set(event.pointerId, event.clientX);
  const after = [...pointers.values()];
  if (after.length > 1 && spread(after) > 0) zoom(spread(before) / spread(after), instantAt(mean(after)));
  move((mean(before) - mean(after)) * secondsPerPx());
}

function onPointerUp(event) {
  if (!pointers.delete(event.pointerId) || pointers.size || !isDragging) return;
  chart().classList.remove("dragging");
  fetchSoon();
  setTimeout(() => (isDragging = false)); // after the click event that ends the drag
}

function onKeyDown(event) {
  if (event.target !== chart() || event.ctrlKey || event.metaKey || event.altKey) return;
  const around = view.centre;
  const actions = {
    "+": () => zoom(0.5, around),
    "=": () => zoom(0.5, around),
    "-": () => zoom(2, around),
    ArrowLeft: () => move(-view.span / 8),
    ArrowRight: () => move(view.span / 8),
    Home: () => {
      view.follows = true;
      follow(labNow());
      fetchSoon();
    },
  };
  if (!(event.key in actions)) return;
  event.preventDefault();
  actions[event.key]();
}

if (section !== null) {
  section.addEventListener("wheel", onWheel, { passive: false });
  section.addEventListener("pointerdown", onPointerDown);
  addEventListener("pointermove", onPointerMove);
  addEventListener("pointerup", onPointerUp);
  addEventListener("pointercancel", onPointerUp);
  section.addEventListener("keydown", onKeyDown);
  section.addEventListener("click", (event) => isDragging && event.preventDefault(), { capture: true });
  section.addEventListener("dragstart", (event) => event.preventDefault());
}
addEventListener("refreshed", adoptWindow);
adoptWindow();
requestAnimationFrame(onFrame);
