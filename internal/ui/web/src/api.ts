// Requests to the service. Each has both secrets of the session: the cookie, which no script can
// read, and the page's secret. The browser sends the cookie to all ports of the host, but keeps
// localStorage apart by port. Tabs share it, and it outlives a reload.
const stored = 'session';

export function keepSecret(secret: string): void {
  localStorage.setItem(stored, secret);
}

export function forgetSecret(): void {
  localStorage.removeItem(stored);
}

// secretProtocol returns the page's secret as a subprotocol, because a page cannot set headers of
// WebSockets.
export function secretProtocol(): string {
  return 'orchestrator.ui.' + (localStorage.getItem(stored) ?? '');
}

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

export async function request(method: string, path: string, init: RequestInit = {}): Promise<Response> {
  let res: Response;
  const secret = localStorage.getItem(stored); // another tab may have signed in again
  const headers = { ...(init.headers as Record<string, string>), ...(secret && { 'Orchestrator-UI': secret }) };
  try {
    res = await fetch(path, { ...init, method, headers });
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

// save downloads a file. A link cannot send the page's secret, so the browser collects the file first.
export async function save(path: string, file: string): Promise<void> {
  const content = await (await request('GET', path, { headers: { Accept: 'application/octet-stream' } })).blob();
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content.slice(0, content.size, 'application/octet-stream')); // never shown as a page
  link.download = file.replace(/[^\w.-]+/g, '_') || 'file';
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// events calls handle for each event of a stream until it ends. EventSource cannot send the page's
// secret.
export async function events(path: string, signal: AbortSignal, handle: (topic: string, data: any) => void): Promise<void> {
  const res = await request('GET', path, { signal, headers: { Accept: 'text/event-stream' } });
  const reader = res.body!.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const all = (rest + value).split('\n\n');
    rest = all.pop()!;
    for (const text of all) {
      const event = /^event: (.*)\ndata: (.*)$/.exec(text); // other texts are heartbeats
      if (event) handle(event[1], JSON.parse(event[2]));
    }
  }
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
