// Parts that several pages use.
import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { message } from './api';
import { name } from './text';

// route is the address after '#', as a path and its parameters.
export interface Route { path: string[]; parameters: URLSearchParams }

export function parseRoute(hash: string): Route {
  const [path, q] = hash.replace(/^#\/?/, '').split('?');
  return { path: path.split('/').filter(Boolean).map(decode), parameters: new URLSearchParams(q ?? '') };
}

function decode(part: string): string {
  try { return decodeURIComponent(part); } catch { return part; }
}

export function Failure({ error }: { error?: string }) {
  return error ? <p class="failure" role="alert">{name(error, 2000)}</p> : null;
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

const good = ['leased', 'running', 'ok', 'exited', 'allow', 'approved', 'ready', 'warm'];
const bad = ['failed', 'oom', 'pids', 'disk', 'timeout', 'sandbox_lost', 'deny', 'denied', 'policy_denied', 'approval_denied',
  'signalled', 'output_limit', 'not_ready', 'expired', 'refused'];

export function Badge({ text }: { text?: string }) {
  if (!text) return null;
  const kind = good.includes(text) ? 'good' : bad.includes(text) ? 'bad' : 'plain';
  return <span class={`badge ${kind}`}>{name(text)}</span>;
}

export function ending(e?: string, code?: number): string {
  return e ? (e === 'exited' && code !== undefined ? `exited ${code}` : e) : '';
}

// Action is a button that runs something and shows how it failed. With confirm, it asks first.
export function Action({ run, children, confirm, kind, disabled, label }: {
  run: () => Promise<unknown> | void; children: ComponentChildren; confirm?: string; kind?: 'danger' | 'primary'; disabled?: boolean; label?: string;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string>();
  const [asking, setAsking] = useState(false);
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);
  const go = async () => {
    setAsking(false);
    setBusy(true);
    setError(undefined);
    try {
      await run();
    } catch (e) {
      if (alive.current) setError(message(e));
    }
    if (alive.current) setBusy(false);
  };
  return <span class="action">
    <button type="button" class={kind} disabled={busy || disabled} aria-label={label}
      onClick={() => confirm ? setAsking(true) : void go()}>{children}</button>
    {asking && <Dialog title={confirm!} close={() => setAsking(false)}>
      <div class="row">
        <button type="button" class={kind ?? 'primary'} autofocus onClick={() => void go()}>Yes</button>
        <button type="button" onClick={() => setAsking(false)}>No</button>
      </div>
    </Dialog>}
    {error && <Failure error={error} />}
  </span>;
}

export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => { ref.current?.showModal(); }, []);
  return <dialog ref={ref} aria-label={title} onClose={close} onCancel={close}>
    <h2>{title}</h2>
    {children}
  </dialog>;
}

// Facts is a list of names with values. Values that are missing are left out.
export function Facts({ list }: { list: [string, ComponentChildren][] }) {
  return <dl class="facts">
    {list.filter(([, v]) => v !== undefined && v !== '' && v !== null && v !== false).map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}
  </dl>;
}

export interface Column<T> { head: string; cell: (item: T) => ComponentChildren; wide?: boolean; number?: boolean }

// Table shows few items.
export function Table<T>({ label, columns, items, keyOf }: { label: string; columns: Column<T>[]; items: T[]; keyOf: (item: T) => string }) {
  return <div class="scroll-x" tabIndex={0} role="region" aria-label={label}>
    <table aria-label={label}>
      <thead><tr>{columns.map((c) => <th key={c.head} scope="col" class={c.number ? 'number' : undefined}>{c.head}</th>)}</tr></thead>
      <tbody>{items.map((item) => <tr key={keyOf(item)}>
        {columns.map((c) => <td key={c.head} class={c.number ? 'number' : undefined} data-head={c.head}>{c.cell(item)}</td>)}
      </tr>)}</tbody>
    </table>
  </div>;
}

// VirtualList shows many rows of the same height, and makes elements only for those in sight. The
// arrow keys, Page Up and Down, Home and End scroll it, as it has the focus.
export function VirtualList<T>({ label, items, rowHeight, row, keyOf, follow, class: cls, head }: {
  label: string; items: T[]; rowHeight: number; row: (item: T, index: number) => ComponentChildren; keyOf: (item: T, index: number) => string | number;
  follow?: boolean; class?: string; head?: ComponentChildren;
}) {
  const ref = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    const at = ref.current!;
    const see = () => setView({ top: at.scrollTop, height: at.clientHeight });
    const scrolled = () => {
      atEnd.current = at.scrollTop + at.clientHeight >= at.scrollHeight - rowHeight;
      see();
    };
    const sizes = new ResizeObserver(see);
    sizes.observe(at);
    at.addEventListener('scroll', scrolled, { passive: true });
    return () => { sizes.disconnect(); at.removeEventListener('scroll', scrolled); };
  }, [rowHeight]);
  useLayoutEffect(() => {
    if (follow && atEnd.current) ref.current!.scrollTop = items.length * rowHeight;
  });
  const first = Math.max(0, Math.min(Math.floor(view.top / rowHeight), items.length - 1) - 5);
  const shown = items.slice(first, first + Math.ceil(view.height / rowHeight) + 10);
  return <div class={`list ${cls ?? ''}`} role="table" aria-label={label} aria-rowcount={items.length}>
    {head && <div class="list-head" role="row">{head}</div>}
    <div class="list-body" ref={ref} tabIndex={0} role="rowgroup" aria-label={label}>
      <div class="list-space" style={{ height: `${items.length * rowHeight}px` }}>
        <div class="list-window" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {shown.map((item, i) => <div class="list-row" role="row" aria-rowindex={first + i + 1} style={{ height: `${rowHeight}px` }}
            key={keyOf(item, first + i)}>{row(item, first + i)}</div>)}
        </div>
      </div>
    </div>
  </div>;
}

export function Cell({ children, class: cls, label }: { children?: ComponentChildren; class?: string; label?: string }) {
  return <span role="cell" class={cls} data-head={label}>{children}</span>;
}

// useNarrow reports whether the page is as narrow as a phone.
export function useNarrow(): boolean {
  const [query] = useState(() => window.matchMedia('(max-width: 700px)'));
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const f = () => set(query.matches);
    query.addEventListener('change', f);
    return () => query.removeEventListener('change', f);
  }, []);
  return narrow;
}

export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return <label class="field"><span>{label}</span>{children}</label>;
}

export function onSubmit(f: (data: FormData) => void): (e: SubmitEvent) => void {
  return (e) => {
    e.preventDefault();
    f(new FormData(e.currentTarget as HTMLFormElement));
  };
}
