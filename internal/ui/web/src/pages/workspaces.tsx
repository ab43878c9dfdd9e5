import { useRef, useState } from 'preact/hooks';
import { get, message, send, url } from '../api';
import { Files } from '../files';
import { useLive, useLoad, useThrottled } from '../live';
import { Overlays } from '../overlay';
import { Action, Empty, Facts, Failure, Field, onSubmit, Table } from '../parts';
import { bytes, name, short, when } from '../text';
import type { List, ServiceEvent, Session, Snapshot, Workspace } from '../types';

export function WorkspacesPage({ name: one, session, parameters }: { name?: string; session: Session; parameters: URLSearchParams }) {
  return one ? <WorkspacePage key={one} workspace={one} session={session} tab={parameters.get('tab') ?? 'files'} /> : <All session={session} />;
}

function All({ session }: { session: Session }) {
  const { data, error, reload } = useLoad(() => get<List<Workspace>>('/v1/workspaces'));
  const soon = useThrottled(reload, 500);
  const [failure, setFailure] = useState<string>();
  const form = useRef<HTMLFormElement>(null);
  useLive('events', (e: ServiceEvent) => { if (e.type.startsWith('workspace.') || e.type.startsWith('sandbox.')) soon(); }, soon);
  return <>
    <h1>Workspaces</h1>
    <form ref={form} class="bar" onSubmit={onSubmit(async (d) => {
      setFailure(undefined);
      try {
        await send('POST', '/v1/workspaces', { name: d.get('name') });
        form.current?.reset();
        reload();
      } catch (e) { setFailure(message(e)); }
    })}><Field label="New workspace"><input name="name" required autocomplete="off" /></Field><button class="primary">Create</button></form>
    <Failure error={failure ?? error} />
    {data && data.items.length === 0 && <Empty>You have no workspace.</Empty>}
    {data && data.items.length > 0 && <Table label="Workspaces" items={data.items} keyOf={(w) => w.name} columns={[
      { head: 'Name', cell: (w) => <a href={'#' + url`/workspaces/${w.name}`}>{name(w.name)}</a> },
      { head: 'Used', number: true, cell: (w) => bytes(w.used_bytes) }, { head: 'Quota', number: true, cell: (w) => w.quota_bytes ? bytes(w.quota_bytes) : '–' },
      { head: 'Sandboxes', cell: (w) => (w.sandboxes ?? []).map((s) => <a key={s} class="mono" href={'#' + url`/sandboxes/${s}`}>{short(s)} </a>) },
      { head: 'Overlays', number: true, cell: (w) => w.overlays ?? 0 }, { head: 'Snapshots', number: true, cell: (w) => w.snapshots ?? 0 },
      { head: 'Created', cell: (w) => when(w.created_at) },
      { head: '', cell: (w) => session.direct && <Action kind="danger" confirm={`Remove workspace ${name(w.name, 60)} with its files?`} label={`Remove ${name(w.name)}`}
        run={() => send('DELETE', url`/v1/workspaces/${w.name}`).then(reload)}>Remove</Action> },
    ]} />}
  </>;
}

function WorkspacePage({ workspace, session, tab }: { workspace: string; session: Session; tab: string }) {
  const { data: w, error } = useLoad(() => get<Workspace>(url`/v1/workspaces/${workspace}`), [workspace]);
  return <>
    <h1>Workspace {name(workspace)}</h1>
    <Failure error={error} />
    {w && <Facts list={[['Used', bytes(w.used_bytes)], ['Quota', w.quota_bytes ? bytes(w.quota_bytes) : ''], ['Created', when(w.created_at)], ['Claim', name(w.claim)],
      ['In use by', w.sandboxes?.length > 0 && w.sandboxes.map((s) => <a key={s} class="mono" href={'#' + url`/sandboxes/${s}`}>{short(s)} </a>)]]} />}
    <nav class="tabs" aria-label="Parts of the workspace">{['files', 'overlays', 'snapshots'].map((t) =>
      <a key={t} href={'#' + url`/workspaces/${workspace}` + `?tab=${t}`} aria-current={t === tab ? 'page' : undefined}>{t[0].toUpperCase() + t.slice(1)}</a>)}</nav>
    {tab === 'files' && <Files base={url`/v1/workspaces/${workspace}/files`} root="" writable={session.direct} />}
    {tab === 'overlays' && <Overlays workspace={workspace} session={session} />}
    {tab === 'snapshots' && <Snapshots workspace={workspace} session={session} />}
  </>;
}

function Snapshots({ workspace, session }: { workspace: string; session: Session }) {
  const base = url`/v1/workspaces/${workspace}/snapshots`;
  const { data, error, reload } = useLoad(() => get<List<Snapshot>>(base), [workspace]);
  return <>
    <Failure error={error} />
    {session.direct && <p><Action run={() => send('POST', base, {}).then(reload)}>Make a snapshot</Action></p>}
    {data && data.items.length === 0 && <Empty>There is no snapshot.</Empty>}
    {data && data.items.length > 0 && <Table label="Snapshots" items={data.items} keyOf={(s) => s.id} columns={[
      { head: 'Id', cell: (s) => <span class="mono">{s.id}</span> }, { head: 'Label', cell: (s) => name(s.label) }, { head: 'Made', cell: (s) => when(s.created_at) },
      { head: 'Size', number: true, cell: (s) => bytes(s.size_bytes) },
      { head: '', cell: (s) => session.direct && <span class="row">
        <Action confirm="Put back the files of this snapshot?" run={() => send('POST', url`/v1/workspaces/${workspace}/restore`, { snapshot: s.id })}>Restore</Action>
        <Action kind="danger" confirm="Remove this snapshot?" run={() => send('DELETE', base + '/' + encodeURIComponent(s.id)).then(reload)}>Remove</Action>
      </span> },
    ]} />}
  </>;
}
