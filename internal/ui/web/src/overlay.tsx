// The changes of an overlay, which a person commits or discards.
import { useState } from 'preact/hooks';
import { get, send, url } from './api';
import { useLoad } from './live';
import { Action, Badge, Empty, Facts, Failure } from './parts';
import { bytes, name, visible } from './text';
import type { Change, Commit, Diff, Overlay, Session } from './types';

export function OverlayView({ id, session, done }: { id: string; session: Session; done?: () => void }) {
  const { data: d, error, reload } = useLoad(() => send<Diff>('POST', url`/v1/overlays/${id}/diff`, { text: true }), [id]);
  const [chosen, setChosen] = useState(new Set<string>());
  const [finished, setFinished] = useState<string>();
  if (finished) return <p class="good" role="status">{finished}</p>;
  if (!d) return <Failure error={error} />;
  const live = d.overlay.live;
  const conflicts = d.changes.filter((c) => c.conflict).length;
  // An overlay without changes does not exist any more.
  const after = (left: number, text: string) => { setChosen(new Set()); if (left > 0) reload(); else setFinished(text); done?.(); };
  const commit = (force: boolean) => send<Commit>('POST', url`/v1/overlays/${id}/commit`, { paths: chosen.size ? [...chosen] : undefined, force: force || undefined, end: live || undefined })
    .then((c) => after(c!.left, `${c!.paths.length} changes were committed.`));
  const what = chosen.size ? `${chosen.size} chosen changes` : 'all changes';
  return <section aria-label="Changes">
    <Failure error={error} />
    <Facts list={[['Workspace', name(d.overlay.workspace)], ['Added', String(d.added)], ['Changed', String(d.changed)], ['Removed', String(d.removed)], ['Conflicts', conflicts ? String(conflicts) : '']]} />
    {d.changes.length === 0 ? <Empty>Nothing was changed.</Empty> : session.direct && <p class="row">
      <Action kind="primary" confirm={`Commit ${what}?${live ? ' This ends the sandbox.' : ''}`} run={() => commit(false)}>Commit {what}</Action>
      {conflicts > 0 && <Action kind="danger" confirm={`Commit ${what} and overwrite what others changed?`} run={() => commit(true)}>Commit over conflicts</Action>}
      <Action kind="danger" confirm={`Discard all changes?${live ? ' This ends the sandbox.' : ''}`} run={() => send('DELETE', url`/v1/overlays/${id}` + (live ? '?end=true' : '')).then(() => after(0, 'The changes were discarded.'))}>Discard all</Action>
    </p>}
    {d.truncated && <p>Only the first {d.changes.length} changes are shown.</p>}
    <ul class="changes">{d.changes.map((c) => <li key={c.path_base64 ?? c.path}><ChangeView change={c} chosen={chosen.has(c.path)}
      choose={c.path_base64 ? undefined : (on) => setChosen((was) => { const next = new Set(was); if (on) next.add(c.path); else next.delete(c.path); return next; })} /></li>)}</ul>
  </section>;
}

function ChangeView({ change: c, chosen, choose }: { change: Change; chosen: boolean; choose?: (on: boolean) => void }) {
  return <details>
    <summary>
      {choose && <input type="checkbox" aria-label={`Choose ${name(c.path)}`} checked={chosen} onClick={(e) => e.stopPropagation()} onChange={(e) => choose(e.currentTarget.checked)} />}
      <Badge text={c.kind} /> <span class="mono">{name(c.path)}</span> <small>{c.type} {c.kind === 'removed' ? bytes(c.size_before) : bytes(c.size)}{c.dropped && ', never committed'}</small>
      {c.conflict && <span class="badge bad">conflict{c.conflict.by ? ` with ${name(c.conflict.by)}` : ''}</span>}
    </summary>
    {c.diff ? <pre class="diff" tabIndex={0}>{visible(c.diff).split('\n').map((line, i) =>
      <span key={i} class={line[0] === '+' ? 'added' : line[0] === '-' ? 'removed' : line[0] === '@' ? 'hunk' : undefined}>{line || ' '}</span>)}</pre> :
      <Empty>{c.binary ? 'This is not text.' : 'There is no text to compare.'}</Empty>}
    {c.truncated && <p>The comparison is cut.</p>}
  </details>;
}

export function Overlays({ workspace, session }: { workspace: string; session: Session }) {
  const { data, error, reload } = useLoad(() => get<{ items: Overlay[] }>(url`/v1/workspaces/${workspace}/overlays`), [workspace]);
  const [open, setOpen] = useState<string>();
  return <>
    <Failure error={error} />
    {data && data.items.length === 0 && <Empty>This workspace has no overlay.</Empty>}
    <ul class="plain">{data?.items.map((o) => <li key={o.id}>
      <button type="button" class="link mono" aria-expanded={open === o.id} onClick={() => setOpen(open === o.id ? undefined : o.id)}>{o.id}</button> {o.live ? 'live' : `${o.changes} changes`}
      {open === o.id && <OverlayView id={o.id} session={session} done={reload} />}
    </li>)}</ul>
  </>;
}
