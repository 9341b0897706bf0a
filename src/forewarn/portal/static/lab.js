// The lab's clock goes on while one looks at it.

import { labNow } from "./live.js";

function tick() {
  const face = document.querySelector("[data-clock]");
  if (face) face.textContent = `${new Date(labNow() * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

setInterval(tick, 250);
