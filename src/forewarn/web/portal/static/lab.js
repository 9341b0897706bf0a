// Keeps the clock of the lab page running.

import { labNow } from "./live.js";

function tick() {
  const clock = document.querySelector("[data-clock]");
  if (clock) clock.textContent = `${new Date(labNow() * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

setInterval(tick, 250);
