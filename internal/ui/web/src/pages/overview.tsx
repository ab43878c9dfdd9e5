import { useState } from 'preact/hooks';
import { useLive } from '../live';
import { Badge, Empty, Table } from '../parts';
import { duration, name } from '../text';
import type { Overview, Session } from '../types';

export function OverviewPage({ session }: { session: Session }) {
  const [o, set] = useState<Overview>();
  useLive('overview', set);
  if (!o) return <><h1>Overview</h1><p role="status">Loading…</p></>;
  const each = o.calls.each;
  const last = each.slice(-10).reduce((a, b) => a + b, 0) / 10;
  const total = Object.values(o.calls.endings).reduce((a, b) => a + b, 0);
  const living = Object.values(o.sandboxes).reduce((a, b) => a + b, 0);
  return <>
    <h1>Overview</h1>
    <section aria-labelledby="wrong" class={o.problems.length ? 'problems' : 'fine'}>
      <h2 id="wrong">{o.problems.length ? 'Wrong now' : 'Nothing is wrong now'}</h2>
      {o.problems.length > 0 && <ul>{o.problems.map((p) => <li key={p}>{name(p, 600)}</li>)}</ul>}
    </section>
    <div class="tiles">
      <Tile title="Tool calls per second" value={last.toFixed(last < 10 ? 1 : 0)} note="mean of 10 s"><Bars values={each} /></Tile>
      <Tile title="Tool calls in a minute" value={String(total)} note={`p50 ${duration(o.calls.p50_ms)}`}>
        <p>p95 {duration(o.calls.p95_ms)}<br />p99 {duration(o.calls.p99_ms)}</p>
      </Tile>
      <Tile title={session.operator ? 'Sandboxes' : 'Your sandboxes'} value={String(living)} note="alive">
        <ul class="plain">{Object.entries(o.sandboxes).sort().map(([state, n]) => <li key={state}><Badge text={state} /> {n}</li>)}</ul>
      </Tile>
      <Tile title="Endings in a minute" value={String(Object.keys(o.calls.endings).length)} note="kinds">
        <ul class="plain">{Object.entries(o.calls.endings).sort((a, b) => b[1] - a[1]).map(([e, n]) => <li key={e}><Badge text={e} /> {n}</li>)}</ul>
      </Tile>
    </div>
    <h2>Pools</h2>
    {o.pools.length === 0 ? <Empty>There is no pool.</Empty> : <Table label="Pools" items={o.pools} keyOf={(p) => p.template} columns={[
      { head: 'Template', cell: (p) => name(p.template) },
      { head: 'Warm', number: true, cell: (p) => `${p.warm} of ${p.target}` },
      { head: 'Leased', number: true, cell: (p) => p.leased },
      { head: 'Creating', number: true, cell: (p) => p.creating },
      { head: 'Waiting', number: true, cell: (p) => p.waiting },
      { head: 'Created', number: true, cell: (p) => p.created_total },
      { head: 'Failed', number: true, cell: (p) => p.failed_total },
      { head: 'Image', cell: (p) => name(p.image, 60) },
    ]} />}
  </>;
}

function Tile({ title, value, note, children }: { title: string; value: string; note: string; children: preact.ComponentChildren }) {
  return <section class="tile" aria-label={title}><h2>{title}</h2><p class="value">{value} <small>{note}</small></p>{children}</section>;
}

function Bars({ values }: { values: number[] }) {
  const most = Math.max(1, ...values);
  return <svg class="bars" viewBox={`0 0 ${values.length} 20`} preserveAspectRatio="none" role="img"
    aria-label={`Calls in each of the last ${values.length} seconds, at most ${most}`}>
    {values.map((v, i) => <rect key={i} x={i + 0.1} width={0.8} y={20 - (20 * v) / most} height={(20 * v) / most} />)}
  </svg>;
}
