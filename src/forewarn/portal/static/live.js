// The stream of what changes, for every script of a page:
//
//   import { live, labNow } from "./live.js";
//   live.addEventListener("change", (event) => event.detail.vms …);
//
// It is taken up again by itself after a gap, from the last number that was heard. A hidden page holds no connection:
// a browser opens only a few to one host, and somebody who has many tabs open looks at one of them.

import { seated } from "./stream-slots.js";

export const live = new EventTarget();

const KINDS = ["change", "asking", "counts", "clock", "reset", "health"];
const SILENCE_MS = 40_000; // the service says something every 15 s
const SOONEST_MS = 500;
const LATEST_MS = 5_000;
const CROWDED_MS = 2_000; // without a seat

const told = document.body.dataset;
let seq = Number(told.seq);
let heardAt = 0; // when this page was last up to date; at first, when it was asked for
let clock = { now: Number(told.now), speed: Number(told.speed), at: performance.now() };
let wanted = null; // what gives the seat back; null while nothing is wanted
let source = null;
let failures = 0;
let wasLost = false;
let isOver = false;
let again; // the timer of the next attempt
let silence; // the timer that runs out when nothing is heard

// Lab time now, in seconds; it goes on between messages.
export function labNow() {
  return clock.now + ((performance.now() - clock.at) / 1000) * clock.speed;
}

export function labSpeed() {
  return clock.speed;
}

// The visit has ended: nothing comes any more until somebody signs in.
export function end() {
  isOver = true;
  close();
  say("over");
}

async function open() {
  if (isOver || wanted !== null || document.visibilityState === "hidden") return;
  clearTimeout(again);
  const mine = (wanted = new AbortController());
  const crowded = setTimeout(say, CROWDED_MS, "crowded");
  try {
    await seated(mine.signal);
  } catch {
    return; // closed meanwhile
  } finally {
    clearTimeout(crowded);
  }
  if (!mine.signal.aborted) listen();
}

function listen() {
  const age = Math.ceil((performance.now() - heardAt) / 1000);
  source = new EventSource(`/portal/live?after=${seq}&age=${age}`);
  source.addEventListener("open", opened);
  source.addEventListener("error", lost);
  source.addEventListener("over", end);
  source.addEventListener("alive", heard);
  for (const kind of KINDS) source.addEventListener(kind, hear);
  expect();
}

function close() {
  clearTimeout(again);
  clearTimeout(silence);
  source?.close();
  wanted?.abort();
  source = wanted = null;
}

function opened() {
  failures = 0;
  say("found");
  // Whatever is not in the history, such as the faults' counts, was missed for good.
  if (wasLost) say("reset", {});
  wasLost = false;
}

function hear(event) {
  heard();
  if (event.lastEventId) seq = Number(event.lastEventId);
  const detail = JSON.parse(event.data);
  if (event.type === "clock") clock = { ...detail, at: performance.now() };
  say(event.type, detail);
}

function heard() {
  heardAt = performance.now();
  expect();
}

function expect() {
  clearTimeout(silence);
  silence = setTimeout(lost, SILENCE_MS);
}

// Try again, ever less often; not all pages of a service that comes back at the same moment.
function lost() {
  close();
  wasLost = true;
  failures += 1;
  say("lost", { failures });
  const wait = Math.min(SOONEST_MS * 2 ** (failures - 1), LATEST_MS);
  again = setTimeout(failures > 1 ? look : open, wait * (0.75 + Math.random() / 2));
}

// A stream that is refused does not say why, so the page itself is asked: who is signed out is sent to sign in.
async function look() {
  try {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual", cache: "no-store" });
    if (answer.type === "opaqueredirect") return end();
  } catch {
    return lost();
  }
  open();
}

function say(kind, detail) {
  live.dispatchEvent(new CustomEvent(kind, { detail }));
}

document.addEventListener("visibilitychange", () => (document.visibilityState === "hidden" ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);
open();
