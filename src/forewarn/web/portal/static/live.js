// The live stream of changes, shared by all scripts of a page:
//
//   import { live, labNow } from "./live.js";
//   live.addEventListener("change", (event) => event.detail.vms …);
//
// Dispatches the messages of the server (MESSAGES), and "connected", "disconnected", "waiting" (for a stream slot) and
// "signed-out". After a gap it reconnects and resumes from the last sequence number it received. A hidden page holds no
// connection: a browser opens only a few to one host, and a user with many tabs looks at one of them.

import { acquireStreamSlot } from "./stream-slots.js";

export const live = new EventTarget();

const MESSAGES = ["change", "polling", "counts", "clock", "reset", "health", "hold", "nodes"];
const SILENCE_TIMEOUT_MS = 40_000; // the server sends something every 15 s
const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 5_000;
const SLOT_WAIT_MS = 2_000; // without a slot, until the page shows a message

const page = document.body.dataset;
let seq = Number(page.seq);
let currentAt = 0; // when this page was last up to date; at first, when it was requested
let clock = { now: Number(page.now), speed: Number(page.speed), at: performance.now() };
let slot = null; // aborts the wait for a stream slot, or releases it; null while the stream is closed
let source = null;
let failures = 0;
let wasDisconnected = false;
let isSignedOut = false;
let retryTimer;
let silenceTimer;

// Lab time now, in seconds. It advances between messages.
export function labNow() {
  return clock.now + ((performance.now() - clock.at) / 1000) * clock.speed;
}

export function labSpeed() {
  return clock.speed;
}

// The session has ended: closes the stream until the user signs in.
export function signedOut() {
  isSignedOut = true;
  close();
  dispatch("signed-out");
}

async function open() {
  if (isSignedOut || slot !== null || document.visibilityState === "hidden") return;
  clearTimeout(retryTimer);
  const acquired = (slot = new AbortController());
  const waiting = setTimeout(dispatch, SLOT_WAIT_MS, "waiting");
  try {
    await acquireStreamSlot(acquired.signal);
  } catch {
    return; // closed meanwhile
  } finally {
    clearTimeout(waiting);
  }
  if (!acquired.signal.aborted) connect();
}

function connect() {
  const age = Math.ceil((performance.now() - currentAt) / 1000);
  source = new EventSource(`/portal/live?after=${seq}&age=${age}`);
  source.addEventListener("open", onOpen);
  source.addEventListener("error", disconnected);
  source.addEventListener("over", signedOut);
  source.addEventListener("alive", onAlive);
  for (const message of MESSAGES) source.addEventListener(message, onMessage);
  restartSilenceTimer();
}

function close() {
  clearTimeout(retryTimer);
  clearTimeout(silenceTimer);
  source?.close();
  slot?.abort();
  source = slot = null;
}

function onOpen() {
  failures = 0;
  dispatch("connected");
  // The server resends only what the history holds: the counts of faults, for example, were missed.
  if (wasDisconnected) dispatch("reset", {});
  wasDisconnected = false;
}

function onMessage(event) {
  onAlive();
  if (event.lastEventId) seq = Number(event.lastEventId);
  const detail = JSON.parse(event.data);
  if (event.type === "clock") clock = { ...detail, now: Date.parse(detail.now) / 1000, at: performance.now() };
  dispatch(event.type, detail);
}

function onAlive() {
  currentAt = performance.now();
  restartSilenceTimer();
}

function restartSilenceTimer() {
  clearTimeout(silenceTimer);
  silenceTimer = setTimeout(disconnected, SILENCE_TIMEOUT_MS);
}

// Reconnects with backoff and jitter, so that the pages of a restarted service do not all reconnect at once.
function disconnected() {
  close();
  wasDisconnected = true;
  failures += 1;
  dispatch("disconnected", { failures });
  const wait = Math.min(MIN_RETRY_MS * 2 ** (failures - 1), MAX_RETRY_MS);
  retryTimer = setTimeout(failures > 1 ? checkSession : open, wait * (0.75 + Math.random() / 2));
}

// An EventSource does not say why it failed, so this requests the page itself: a redirect means signed out.
async function checkSession() {
  try {
    const response = await fetch(location.href, { method: "HEAD", redirect: "manual", cache: "no-store" });
    if (response.type === "opaqueredirect") return signedOut();
  } catch {
    return disconnected();
  }
  open();
}

function dispatch(type, detail) {
  live.dispatchEvent(new CustomEvent(type, { detail }));
}

document.addEventListener("visibilitychange", () => (document.visibilityState === "hidden" ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);
open();
