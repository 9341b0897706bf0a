// Changes one element into a copy of another and keeps every node it can: focus, scroll position, unfolded details and
// typed text belong to nodes, and stay with them.

export function morph(old, fresh) {
  morphAttributes(old, fresh);
  morphChildren(old, fresh);
}

function morphAttributes(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (!isSetByUser(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!isSetByUser(old, name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
}

// Attributes that the user or a script has set and the server does not know.
function isSetByUser(element, name) {
  if (element.matches("details, dialog")) return name === "open";
  if (element.matches("input, textarea, select, option")) return ["value", "checked", "selected"].includes(name);
  return name === "style";
}

function morphChildren(old, fresh) {
  if (old.matches("textarea, select") && old === document.activeElement) return;
  const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let position = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const kept = reusableNode(position, next, byId);
    if (kept === null) {
      old.insertBefore(document.importNode(next, true), position);
      continue;
    }
    if (kept === position) position = position.nextSibling;
    else old.insertBefore(kept, position);
    if (kept.nodeType === Node.ELEMENT_NODE) morph(kept, next);
    else if (kept.data !== next.data) kept.data = next.data;
  }
  while (position !== null) {
    const removed = position;
    position = position.nextSibling;
    removed.remove();
  }
}

// The node that can become `next`: the one with the same id, else the one at this position if its name is the same.
function reusableNode(position, next, byId) {
  if (next.id) return byId.get(next.id)?.nodeName === next.nodeName ? byId.get(next.id) : null;
  return position !== null && !position.id && position.nodeName === next.nodeName ? position : null;
}
