// Limits how many windows and tabs of one browser hold a live stream. A browser opens six connections to one host, a
// stream keeps its own for as long as it lasts, and pages have to load as well.

const SLOTS = 4;

// Resolves when this page has a slot, and holds it until `signal` aborts. Rejects if `signal` aborts first.
export async function acquireStreamSlot(signal) {
  if (!navigator.locks) return;
  const settled = new AbortController();
  signal.addEventListener("abort", () => settled.abort());
  await Promise.any(Array.from({ length: SLOTS }, (_, number) => requestSlot(`forewarn-live-${number}`, settled, signal)));
}

// Requests one of the slots. The first one granted aborts the requests for the others.
function requestSlot(name, settled, signal) {
  return new Promise((resolve, reject) => {
    const hold = () => {
      if (settled.signal.aborted) return reject(settled.signal.reason);
      settled.abort();
      resolve();
      return new Promise((release) => signal.addEventListener("abort", release));
    };
    navigator.locks.request(name, { signal: settled.signal }, hold).catch(reject);
  });
}
