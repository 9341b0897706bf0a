// Make one element like another of the same name, keeping every node that can stay: focus, scrolling, what is unfolded
// and what somebody is typing live in nodes, and survive with them.

export function morph(old, fresh) {
  attributes(old, fresh);
  children(old, fresh);
}

function attributes(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (!isOwn(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!isOwn(old, name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
}

// What the reader has set, and the service knows nothing of.
function isOwn(element, name) {
  if (element.matches("details, dialog")) return name === "open";
  if (element.matches("input, textarea, select, option")) return ["value", "checked", "selected"].includes(name);
  return name === "style";
}

function children(old, fresh) {
  if (old.matches("textarea, select") && old === document.activeElement) return;
  const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const kept = keepable(place, next, named);
    if (kept === null) {
      old.insertBefore(document.importNode(next, true), place);
      continue;
    }
    if (kept === place) place = place.nextSibling;
    else old.insertBefore(kept, place);
    if (kept.nodeType === Node.ELEMENT_NODE) morph(kept, next);
    else if (kept.data !== next.data) kept.data = next.data;
  }
  while (place !== null) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

// The node that can become `next`: the one of its id wherever it stands, else the one at its place if it is of its sort.
function keepable(place, next, named) {
  if (next.id) return named.get(next.id)?.nodeName === next.nodeName ? named.get(next.id) : null;
  return place !== null && !place.id && place.nodeName === next.nodeName ? place : null;
}
