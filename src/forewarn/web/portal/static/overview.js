// Fetches what needs attention again when time alone changes it.

import { labNow } from "./live.js";
import { refreshSection } from "./refresh.js";

const TICK_MS = 250;

function refreshWhenDue() {
  const attention = document.getElementById("attention");
  if (!attention?.dataset.refreshAt || labNow() < Number(attention.dataset.refreshAt)) return;
  attention.dataset.refreshAt = "";
  refreshSection(attention.id);
}

setInterval(refreshWhenDue, TICK_MS);
