// Questions to the server: JSON in and out, problems as sentences.

export class Problem extends Error {
  constructor(status, code, sentence) {
    super(sentence);
    Object.assign(this, { status, code });
  }
}

let session = null;

async function read(response) {
  if (response.ok) return response.json();
  let told = {};
  try {
    told = await response.json();
  } catch {
    // a proxy or a stopped server may send no JSON
  }
  throw new Problem(response.status, told.code ?? "unknown", told.sentence ?? "The server gave no answer that can be read.");
}

/** GET as JSON; `signal` gives it up. */
export async function get(path, signal) {
  return read(await fetch(path, { signal, cache: "no-store", headers: { accept: "application/json" } }));
}

export async function getSession(fresh = false) {
  if (!session || fresh) session = await get("/v1/session");
  return session;
}

/** POST as JSON with the token of the session; a restarted server has a new one. `signal` gives it up. */
export async function post(path, body, signal, again = true) {
  const { csrf } = await getSession();
  const response = await fetch(path, {
    method: "POST",
    signal,
    cache: "no-store",
    headers: { "content-type": "application/json", "x-csrf-token": csrf },
    body: JSON.stringify(body),
  });
  if (response.status === 403 && again) {
    await getSession(true);
    return post(path, body, signal, false);
  }
  return read(response);
}

/** GET that waits while the models are being loaded or the line is full. */
export function getWhenReady(path, signal, waiting) {
  return whenReady(() => get(path, signal), signal, waiting);
}

/** The same for a question whose answer is kept, which is a POST. */
export function askWhenReady(path, signal, waiting, body = {}) {
  return whenReady(() => post(path, body, signal), signal, waiting);
}

async function whenReady(ask, signal, waiting) {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      const later = error instanceof Problem && (error.status === 503 || error.status === 429);
      if (!later || error.code === "R13") throw error;
      waiting?.(error.message);
      await new Promise((done) => setTimeout(done, 1500));
      if (signal?.aborted) throw new DOMException("given up", "AbortError");
    }
  }
}

export const patientPath = (id, what = "") => `/v1/patients/${encodeURIComponent(id)}${what}`;
