import { useMemo, useState } from 'preact/hooks';
import { send, url } from '../api';
import { useNow } from '../live';
import { Action, Badge, Cell, Empty, Failure, Field, useNarrow, VirtualList } from '../parts';
import { useFigures, useSandboxes } from '../sandboxes';
import { age, bytes, name, short } from '../text';
import type { Sandbox, Session } from '../types';

export function SandboxesPage({ session }: { session: Session }) {
  const [ended, setEnded] = useState(false);
  const [filter, setFilter] = useState('');
  const { items, error } = useSandboxes(session, ended);
  const figures = useFigures();
  const now = useNow();
  const narrow = useNarrow();
  const shown = useMemo(() => (items ?? []).filter((s) => matches(s, filter)), [items, filter]);
  const row = (s: Sandbox) => {
    const use = figures.get(s.id);
    return <>
      <Cell class="id"><a href={'#' + url`/sandboxes/${s.id}`} title={s.id}>{short(s.id)}</a></Cell>
      <Cell><Badge text={s.state} /></Cell>
      <Cell class="caller">{name(s.caller) || '–'}</Cell>
      <Cell class="minor">{name(s.template)}</Cell>
      <Cell class="number" label="age">{age(s.created_at, now)}</Cell>
      <Cell class="number" label="CPU">{use?.cpu === undefined ? '–' : `${(100 * use.cpu).toFixed(0)} %`}</Cell>
      <Cell class="number" label="memory">{use ? (use.missing ? '–' : bytes(use.memory)) : '–'}</Cell>
      <Cell class="minor">{name(s.workspace)}</Cell>
      <Cell class="end">{s.state === 'leased' && <Action kind="danger" confirm={`End sandbox ${short(s.id)}?`} label={`End ${s.id}`}
        run={() => send('DELETE', url`/v1/sandboxes/${s.id}`)}>End</Action>}{s.ended_at && name(s.reason)}</Cell>
    </>;
  };
  return <>
    <h1>Sandboxes</h1>
    <div class="bar">
      <Field label="Filter"><input type="search" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} placeholder="id, caller, template, state" /></Field>
      <label class="check"><input type="checkbox" checked={ended} onChange={(e) => setEnded(e.currentTarget.checked)} /> with own ended ones</label>
      <span role="status">{items ? `${shown.length} of ${items.length}` : 'Loading…'}</span>
    </div>
    <Failure error={error} />
    {items && shown.length === 0 ? <Empty>There is no such sandbox.</Empty> :
      <VirtualList label="Sandboxes" class="sandboxes" items={shown} rowHeight={narrow ? 76 : 40} keyOf={(s) => s.id} row={row} head={<>
        {['Id', 'State', 'Caller', 'Template', 'Age', 'CPU', 'Memory', 'Workspace', ''].map((h) => <span role="columnheader" key={h}>{h}</span>)}
      </>} />}
  </>;
}

function matches(s: Sandbox, filter: string): boolean {
  return !filter || [s.id, s.caller, s.template, s.state, s.workspace, s.session].some((v) => v?.includes(filter));
}
