// The command palette: a dialog with a search field and a list of results, opened by Ctrl-K, ⌘K or the button in the
// header. The field keeps the focus (combobox pattern); the arrow keys choose a result, Enter opens it, Escape closes.

const TYPING_PAUSE_MS = 120;

const openButton = document.getElementById("open-palette");
let dialog = null;
let field = null;
let list = null;
let status = null;
let chosen = -1; // index of the chosen result
let pendingSearch = null; // aborts the search under way
let typingTimer;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

function build() {
  field = element("input", {
    type: "text", id: "palette-field", role: "combobox", "aria-label": "Search pages, VMs, hosts, scopes, events and actions",
    "aria-expanded": "true", "aria-controls": "palette-results", "aria-autocomplete": "list", autocomplete: "off",
    spellcheck: "false", maxlength: "200", placeholder: "VM, host, scope, event, page or action",
  });
  list = element("ul", { id: "palette-results", role: "listbox", "aria-label": "Results" });
  status = element("p", { class: "faint", role: "status" });
  dialog = element("dialog", { class: "palette", "aria-label": "Command palette" }, field, list, status);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => pendingSearch?.abort());
  dialog.addEventListener("keydown", onKeyDown);
  list.addEventListener("pointermove", (event) => choose(results().indexOf(event.target.closest("[role=option]"))));
  field.addEventListener("input", () => {
    clearTimeout(typingTimer);
    typingTimer = setTimeout(search, TYPING_PAUSE_MS);
  });
  document.body.append(dialog);
}

// The dialog is modal: the browser keeps the focus in it, and returns it when the dialog closes.
export function openPalette() {
  if (dialog === null) build();
  if (dialog.open) return dialog.close();
  if (document.querySelector("dialog[open]")) return;
  field.value = "";
  show([]);
  dialog.showModal();
  field.focus();
  search();
}

const results = () => [...list.children];

async function search() {
  clearTimeout(typingTimer);
  typingTimer = undefined;
  pendingSearch?.abort();
  const { signal } = (pendingSearch = new AbortController());
  const text = field.value.trim();
  try {
    const response = await fetch(`/portal/palette?${new URLSearchParams({ q: text })}`, { signal, cache: "no-store" });
    if (!response.ok) return fail(response.status === 401 ? "You are signed out." : await response.text());
    show((await response.json()).results, text);
  } catch (error) {
    if (error.name !== "AbortError") fail("The service does not answer.");
  }
}

function fail(text) {
  show([]);
  status.textContent = text;
}

function show(found, text = "") {
  list.replaceChildren(...found.map(resultElement));
  choose(found.length ? 0 : -1);
  status.textContent = found.length ? `${found.length} ${found.length === 1 ? "result" : "results"}` : text && `No results for "${text}"`;
}

function resultElement({ kind, title, detail, href, keys }, number) {
  const option = element("li", { id: `palette-result-${number}`, role: "option", "aria-selected": "false", "data-href": href },
    element("span", { class: "kind" }, kind), " ", element("span", { class: "title" }, title), " ",
    element("span", { class: "faint detail" }, detail), ...(keys ? [" ", element("kbd", {}, keys)] : []));
  option.addEventListener("click", () => openResult(option));
  return option;
}

function choose(number) {
  const all = results();
  if (number < 0 && all.length) return;
  all.forEach((option, index) => option.setAttribute("aria-selected", String(index === number)));
  chosen = number;
  if (number < 0) return field.removeAttribute("aria-activedescendant");
  field.setAttribute("aria-activedescendant", all[number].id);
  all[number].scrollIntoView({ block: "nearest" });
}

function onKeyDown(event) {
  const count = list.children.length;
  if (event.key === "ArrowDown" && count) choose((chosen + 1) % count);
  else if (event.key === "ArrowUp" && count) choose((chosen + count - 1) % count);
  else if (event.key === "PageDown" && count) choose(Math.min(chosen + 5, count - 1));
  else if (event.key === "PageUp" && count) choose(Math.max(chosen - 5, 0));
  else if (event.key === "Enter" && !event.isComposing) openChosen();
  else return;
  event.preventDefault();
}

// Enter right after typing opens what the typed text finds, not what an earlier text found.
async function openChosen() {
  if (typingTimer !== undefined) await search();
  if (list.children[chosen]) openResult(list.children[chosen]);
}

function openResult(option) {
  dialog.close();
  location.assign(option.dataset.href);
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  openPalette();
});
if (openButton) {
  openButton.hidden = false;
  openButton.addEventListener("click", openPalette);
}
