// A browser opens six connections to one host. A stream keeps its own, and pages have to load as well: of all windows
// and tabs of a browser that show the portal, so few hold a stream at a time.

const SEATS = 4;

// Resolves once there is a seat, which is held until the signal says stop; rejects where that comes first.
export async function seated(signal) {
  if (!navigator.locks) return;
  const settled = new AbortController();
  signal.addEventListener("abort", () => settled.abort());
  await Promise.any(Array.from({ length: SEATS }, (_, number) => taken(`forewarn-live-${number}`, settled, signal)));
}

// Any will do: the first one that is granted settles it, and the others are given back.
function taken(name, settled, signal) {
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
