// Requests to the service. A session's cookie goes with each; the header shows the service that it
// is this page that asks.

export class Problem extends Error {
  constructor(readonly status: number, message: string, readonly field?: string) {
    super(field ? `${field} ${message}` : message);
  }
}

let signedOut: () => void = () => undefined;

// onSignedOut sets what happens when the service does not know the session any more.
export function onSignedOut(f: () => void): void {
  signedOut = f;
}

export const headers: Record<string, string> = { 'Orchestrator-UI': '1' };

export async function request(method: string, path: string, init: RequestInit = {}): Promise<Response> {
  let res: Response;
  try {
    res = await fetch(path, { ...init, method, headers: { ...headers, ...(init.headers as Record<string, string>) } });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Problem(0, 'The service does not answer.');
  }
  if (res.ok) return res;
  let problem = new Problem(res.status, `The service answered with status ${res.status}.`);
  try {
    const body = await res.json();
    problem = new Problem(res.status, body.detail, body.field);
  } catch {
    // The answer of a proxy, for example.
  }
  if (res.status === 401 && path !== '/ui/session') signedOut();
  throw problem;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request('GET', path, { signal, headers: { Accept: 'application/json' } })).json();
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T | undefined> {
  const init: RequestInit = body === undefined ? {} : { body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } };
  const text = await (await request(method, path, init)).text();
  return text ? JSON.parse(text) : undefined;
}

// url builds a path from encoded parts and parameters. Parameters that are undefined or "" are left out.
export function url(parts: TemplateStringsArray, ...values: string[]): string {
  return parts.reduce((all, part, i) => all + encodeURIComponent(values[i - 1]) + part);
}

export function query(path: string, parameters: Record<string, string | number | boolean | undefined>): string {
  const q = new URLSearchParams();
  for (const [name, v] of Object.entries(parameters)) if (v !== undefined && v !== '') q.set(name, String(v));
  const text = q.toString();
  return text ? `${path}?${text}` : path;
}

// message returns the text of an error for a person.
export function message(e: unknown): string {
  return e instanceof Error ? e.message : String(e);
}
