// Opens forms in a dialog, with the HTML of their pages. Without this script they are pages of their own.

const SLOW_MS = 1500; // then the dialog says that the request is under way: a large rollout takes a while

let dialog = null;
let opener = null; // the link that opened the dialog, which gets the focus back

function mainElement(text) {
  return new DOMParser().parseFromString(text, "text/html").querySelector("main");
}

function showDialog(text) {
  const content = mainElement(text);
  if (!content) return false;
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.className = "form-dialog";
    dialog.addEventListener("close", () => { dialog.replaceChildren(); opener?.focus(); opener = null; });
    dialog.addEventListener("click", closeOnClick);
    dialog.addEventListener("submit", submit);
    document.body.append(dialog);
  }
  dialog.replaceChildren(...content.childNodes);
  labelByHeading(dialog);
  showFaultParameters(dialog);
  if (!dialog.open) dialog.showModal();
  // A confirmation starts at its heading: pressing Enter again must not confirm it unread.
  const first = dialog.querySelector("h1[autofocus]")
    ?? dialog.querySelector("[role=alert], input:not([type=hidden]), select") ?? dialog.querySelector("h1");
  if (first?.matches("h1, [role=alert]")) first.tabIndex = -1;
  first?.focus();
  dialog.scrollTop = 0;
  return true;
}

// Names the dialog by its heading, for screen readers.
function labelByHeading(within) {
  const title = within.querySelector("h1");
  if (!title) return;
  title.id = "dialog-title";
  within.setAttribute("aria-labelledby", title.id);
}

let isOpening = false; // a link clicked twice opens its form once

async function open(link) {
  if (isOpening) return;
  isOpening = true;
  opener = link;
  try {
    const response = await fetch(link.href, { headers: { accept: "text/html" } });
    // A redirect leads to the sign-in page, which does not belong into a dialog.
    if (response.redirected || !showDialog(await response.text())) location.assign(link.href);
  } catch {
    location.assign(link.href);
  } finally {
    isOpening = false;
  }
}

// A key that is held repeats: it confirms nothing. A repeated click on a confirmation comes from the form before it.
function stopRepeats(event) {
  const isRepeated = event.type === "keydown" ? event.repeat && event.key === "Enter" : event.detail > 1;
  if (isRepeated && event.target.closest?.(".confirm-button")) event.preventDefault();
}

async function submit(event) {
  event.preventDefault();
  const form = event.target;
  const fields = new URLSearchParams(new FormData(form, event.submitter));
  const buttons = form.querySelectorAll("button");
  for (const button of buttons) button.disabled = true;
  const slow = setTimeout(() => showStatus(form, "Working on it …", "notice"), SLOW_MS);
  try {
    const response = await fetch(form.action, { method: "POST", body: fields });
    if (response.redirected) return location.assign(response.url);
    if (!showDialog(await response.text())) location.reload();
  } catch {
    for (const button of buttons) button.disabled = false;
    showStatus(form, "The service did not answer, and the request may have been made: check the history, or try again.");
  } finally {
    clearTimeout(slow);
  }
}

function showStatus(form, text, className = "message error") {
  const line = form.querySelector("[data-status]") ?? document.createElement("p");
  line.dataset.status = "";
  line.className = className;
  line.setAttribute("role", "alert");
  line.textContent = text;
  if (!line.parentNode) form.append(line);
}

function closeOnClick(event) {
  const cancel = event.target.closest("[data-close]");
  if (cancel) event.preventDefault();
  if (cancel || event.target === dialog) dialog.close();
}

// Shows the parameters of the chosen kind of fault, and hides those of the others.
function showFaultParameters(within) {
  const kind = within.querySelector('[data-form="fault"] [name="kind"]');
  if (!kind) return;
  const apply = () => {
    for (const field of within.querySelectorAll("[data-only-for]")) {
      field.hidden = field.dataset.onlyFor !== kind.value;
      for (const input of field.querySelectorAll("input")) input.disabled = field.hidden;
    }
  };
  kind.addEventListener("change", apply);
  apply();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="/portal/forms/"]');
  const isPlainClick = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!link || !isPlainClick || event.defaultPrevented) return;
  event.preventDefault();
  open(link);
});
document.addEventListener("keydown", stopRepeats);
document.addEventListener("click", stopRepeats);

showFaultParameters(document);
// On a form's own page, a button pressed twice submits once.
for (const form of document.querySelectorAll("section.form form")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});
