// Runs on every page: the clock in the header, the banner, and the live sections.

import { live, labNow, labSpeed } from "./live.js";
import "./refresh.js";

const TICK_MS = 250;
const RECONNECT_GRACE_MS = 700; // a shorter interruption is not shown
const TOO_MANY_WINDOWS =
  "Too many windows of this browser show live pages. This page may be out of date until you close one of them.";
const SIGNED_OUT = "You are signed out. This page may be out of date. ";
const DISCONNECTED = "Connection lost. Reconnecting … This page may be out of date.";

const banner = document.getElementById("banner");
const clock = document.getElementById("clock");
let healthText = ""; // what the service reports about its store; "" while it is healthy
let disconnectedTimer;
let isDisconnected = false;
let isWaiting = false;
let isSignedOut = false;

live.addEventListener("health", ({ detail }) => {
  healthText = detail.ok ? "" : detail.text;
  showBanner();
});
live.addEventListener("disconnected", () => {
  disconnectedTimer ??= setTimeout(() => {
    isDisconnected = true;
    showBanner();
  }, RECONNECT_GRACE_MS);
});
live.addEventListener("waiting", () => {
  isWaiting = true;
  showBanner();
});
live.addEventListener("connected", () => {
  clearTimeout(disconnectedTimer);
  disconnectedTimer = undefined;
  isDisconnected = isWaiting = false;
  showBanner();
});
live.addEventListener("signed-out", () => {
  isSignedOut = true;
  showBanner();
});

// Shows one message: the one that explains the others.
function showBanner() {
  const text = isSignedOut ? SIGNED_OUT : isDisconnected ? DISCONNECTED : isWaiting ? TOO_MANY_WINDOWS : healthText;
  banner.classList.toggle("bad", text === healthText);
  banner.replaceChildren(text, ...(isSignedOut ? [signInLink()] : []));
  banner.hidden = !text;
}

function signInLink() {
  const link = document.createElement("a");
  link.href = `/portal/sign-in?to=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in";
  return link;
}

function updateClock() {
  const element = clock?.querySelector("time");
  if (!element) return;
  const iso = new Date(labNow() * 1000).toISOString();
  const text = `${iso.slice(0, 10)} ${iso.slice(11, 19)}`;
  if (element.textContent === text) return;
  element.textContent = text;
  element.dateTime = `${iso.slice(0, 19)}Z`;
}

function updateSpeedTag() {
  const tag = clock?.querySelector(".speed"); // only in a lab
  if (!tag) return;
  tag.textContent = labSpeed() === 0 ? "paused" : `×${labSpeed()}`;
  tag.hidden = labSpeed() === 1;
}

// On a phone the links of the header scroll sideways.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

live.addEventListener("clock", () => {
  updateClock();
  updateSpeedTag();
});
setInterval(updateClock, TICK_MS);
