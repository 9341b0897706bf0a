// Forms open in a dialog, with the HTML of their pages; without this script they are those pages.

let dialog = null;
let opener = null;

function main(text) {
  return new DOMParser().parseFromString(text, "text/html").querySelector("main");
}

function show(text) {
  const content = main(text);
  if (!content) return false;
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.className = "asking";
    dialog.addEventListener("close", () => { dialog.replaceChildren(); opener?.focus(); opener = null; });
    dialog.addEventListener("click", closeOn);
    dialog.addEventListener("submit", send);
    document.body.append(dialog);
  }
  dialog.replaceChildren(...content.childNodes);
  name(dialog);
  fit(dialog);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  // What is only read begins at its heading: Enter, pressed once more, must not confirm it unread.
  const first = dialog.querySelector("[data-first], [role=alert], input:not([type=hidden]), select")
    ?? dialog.querySelector("h1");
  if (first?.matches("h1, [role=alert]")) first.tabIndex = -1;
  first?.focus();
  return true;
}

// The heading names the dialog to those who hear it.
function name(within) {
  const title = within.querySelector("h1");
  if (!title) return;
  title.id = "asking-title";
  within.setAttribute("aria-labelledby", title.id);
}

async function open(link) {
  let answer;
  try {
    answer = await fetch(link.href, { headers: { accept: "text/html" } });
  } catch {
    return location.assign(link.href);
  }
  // Somebody who is no longer signed in is led to sign in, not into a dialog.
  if (answer.redirected || !show(await answer.text())) location.assign(link.href);
}

async function send(event) {
  event.preventDefault();
  const form = event.target;
  const button = event.submitter;
  const fields = new URLSearchParams(new FormData(form, button));
  const buttons = form.querySelectorAll("button");
  for (const one of buttons) one.disabled = true;
  const slow = setTimeout(() => tell(form, "Working on it …", "notice"), 1500); // a large rollout is much to write
  try {
    const answer = await fetch(form.action, { method: "POST", body: fields });
    if (answer.redirected) return location.assign(answer.url);
    if (!show(await answer.text())) location.reload();
  } catch {
    for (const one of buttons) one.disabled = false;
    tell(form, "The service cannot be reached, and what was done is not known: look at the history, or try again.");
  } finally {
    clearTimeout(slow);
  }
}

function tell(form, sentence, looks = "refusal") {
  const line = form.querySelector("[data-told]") ?? document.createElement("p");
  line.dataset.told = "";
  line.className = looks;
  line.setAttribute("role", "alert");
  line.textContent = sentence;
  if (!line.parentNode) form.append(line);
}

function closeOn(event) {
  const leave = event.target.closest("[data-close]");
  if (leave) event.preventDefault();
  if (leave || event.target === dialog) dialog.close();
}

// A fault has parameters of its own: those of other kinds are out of the way.
function fit(within) {
  const kind = within.querySelector('[data-form="fault"] [name="kind"]');
  if (!kind) return;
  const apply = () => {
    for (const one of within.querySelectorAll("[data-only-for]")) {
      one.hidden = one.dataset.onlyFor !== kind.value;
      for (const input of one.querySelectorAll("input")) input.disabled = one.hidden;
    }
  };
  kind.addEventListener("change", apply);
  apply();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="/portal/forms/"]');
  const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || event.defaultPrevented) return;
  event.preventDefault();
  opener = link;
  open(link);
});

fit(document);
// On a page of its own, a button pressed twice sends once.
for (const form of document.querySelectorAll("section.form form")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});
