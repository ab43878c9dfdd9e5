// One stream of server-sent events for the whole page: a browser opens only six connections to a
// service without TLS.
import { useEffect, useRef, useState } from 'preact/hooks';
import { events, Problem } from './api';

type Handler = (data: any) => void;

interface Subscription { topic: string; handle: Handler; opened: () => void }

const longestPause = 10_000;

class Live {
  private all = new Set<Subscription>();
  private source: AbortController | undefined;
  private listening = false;
  private topics = '';
  private timer: number | undefined;
  private pause = 250;
  private watchers = new Set<(up: boolean) => void>();
  up = true;

  constructor() {
    // A page in the background needs no events. It asks for everything again when it is shown.
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) this.timer = window.setTimeout(() => document.hidden && this.stop(), 30_000);
      else if (!this.source) this.restart(0);
    });
  }

  subscribe(s: Subscription): () => void {
    this.all.add(s);
    this.restart(0);
    if (this.listening && this.topics.split(',').includes(s.topic)) s.opened();
    return () => {
      this.all.delete(s);
      this.restart(50); // the next page most often wants the same
    };
  }

  watch(f: (up: boolean) => void): () => void {
    this.watchers.add(f);
    return () => this.watchers.delete(f);
  }

  private stop(): void {
    this.source?.abort();
    this.source = undefined;
    this.listening = false;
    this.topics = '';
  }

  private restart(pause: number): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.connect(), pause);
  }

  private connect(): void {
    const topics = [...new Set([...this.all].map((s) => s.topic))].sort().join(',');
    if (topics === this.topics && this.source) return;
    this.stop();
    if (!topics) return;
    this.topics = topics;
    const source = new AbortController();
    this.source = source;
    const again = () => {
      if (source !== this.source) return;
      this.note(false);
      this.stop();
      this.restart(this.pause);
      this.pause = Math.min(2 * this.pause, longestPause);
    };
    events(`/ui/live?topics=${topics}`, source.signal, (topic, data) => {
      if (source === this.source) this.handle(topic, data);
    }).then(again, again);
  }

  private handle(topic: string, data: any): void {
    if (topic === 'problem' || topic === 'end') throw new Problem(0, 'The stream has ended.');
    const all = [...this.all];
    if (topic === 'listening') {
      this.listening = true;
      this.pause = 250;
      this.note(true);
      for (const s of all) guarded(s.opened);
    }
    for (const s of all) if (s.topic === topic) guarded(() => s.handle(data));
  }

  private note(up: boolean): void {
    this.up = up;
    for (const f of this.watchers) f(up);
  }
}

// guarded calls f and reports its error as the page's own, so that it does not end the stream.
function guarded(f: () => void): void {
  try { f(); } catch (e) { reportError(e); }
}

export const live = new Live();

// useLive calls handle for each event of a topic while the component is shown, and opened whenever
// the stream begins: what happened before is to be asked for then.
export function useLive(topic: string, handle: Handler, opened: () => void = () => undefined): void {
  const latest = useRef({ handle, opened });
  latest.current = { handle, opened };
  useEffect(() => live.subscribe({
    topic, handle: (d) => latest.current.handle(d), opened: () => latest.current.opened(),
  }), [topic]);
}

export function useConnected(): boolean {
  const [up, set] = useState(live.up);
  useEffect(() => live.watch(set), []);
  return up;
}

// useThrottled returns a function that calls f soon, and at most once per interval.
export function useThrottled(f: () => void, interval: number): () => void {
  const latest = useRef(f);
  latest.current = f;
  const timer = useRef<number | undefined>(undefined);
  const last = useRef(0);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  return () => {
    if (timer.current !== undefined) return;
    const pause = Math.max(0, last.current + interval - Date.now());
    timer.current = window.setTimeout(() => {
      timer.current = undefined;
      last.current = Date.now();
      latest.current();
    }, pause);
  };
}

// useNow returns the time, and renders again every second.
export function useNow(): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => set(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  return now;
}

// useLoad calls load when the component is shown and whenever the stream begins again, and returns
// its latest result.
export function useLoad<T>(load: () => Promise<T>, inputs: unknown[] = []): { data?: T; error?: string; reload: () => void; set: (f: (was: T) => T) => void } {
  const [state, set] = useState<{ data?: T; error?: string }>({});
  const run = useRef(0);
  const reload = () => {
    const mine = ++run.current;
    load().then(
      (data) => mine === run.current && set({ data }),
      (e) => mine === run.current && set((was) => ({ data: was.data, error: e instanceof Error ? e.message : String(e) })),
    );
  };
  useEffect(() => {
    set({});
    reload();
    return () => { run.current++; };
  }, inputs);
  return { ...state, reload, set: (f) => set((was) => was.data === undefined ? was : { ...was, data: f(was.data) }) };
}
