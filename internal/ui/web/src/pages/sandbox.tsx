import { useRef, useState } from 'preact/hooks';
import { get, send, url } from '../api';
import { Files } from '../files';
import { useLive, useLoad, useNow, useThrottled } from '../live';
import { LogView } from '../logview';
import { OverlayView } from '../overlay';
import { Action, Badge, Empty, ending, Facts, Failure, Field, onSubmit, Table } from '../parts';
import { useFigures } from '../sandboxes';
import { TerminalView } from '../terminal';
import { age, bytes, clock, duration, name, short, when } from '../text';
import type { AuditRecord, EgressState, List, Sandbox, ServiceEvent, Session, Shell } from '../types';

export function SandboxPage({ id, session, parameters }: { id: string; session: Session; parameters: URLSearchParams }) {
  const { data: s, error, reload } = useLoad(() => get<Sandbox>(url`/v1/sandboxes/${id}`), [id]);
  const soon = useThrottled(reload, 300);
  useLive('events', (e: ServiceEvent) => { if (e.sandbox === id && e.type.startsWith('sandbox.')) soon(); }, soon);
  const figures = useFigures().get(id);
  const now = useNow();
  if (!s) return <><h1>Sandbox {short(id)}</h1><Failure error={error} />{!error && <p role="status">Loading…</p>}</>;
  const alive = s.state === 'leased' && !s.ended_at;
  const own = s.caller === session.caller;
  const tab = parameters.get('tab') ?? 'shells';
  const tabs = ['shells', ...(alive && own && session.direct ? ['terminal'] : []), ...(own ? ['files'] : []), ...(s.mode === 'overlay' && own ? ['changes'] : []), ...(own ? ['egress'] : [])];
  return <>
    <h1>Sandbox <span class="mono">{short(id)}</span> <Badge text={s.ended_at ? s.reason || 'ended' : s.state} /></h1>
    <Facts list={[
      ['Id', <span class="mono">{s.id}</span>], ['Caller', name(s.caller)], ['Template', name(s.template)], ['Image', <span title={name(s.image)}>{name(s.image, 26)}</span>],
      ['Runtime', `${name(s.runtime)}${s.class ? `, ${s.class}` : ''}`],
      ['Workspace', s.workspace && <>{name(s.workspace)}{s.mode && s.mode !== 'rw' ? ` (${s.mode})` : ''}</>],
      ['Session', name(s.session)], ['Age', age(s.created_at, now)], ['Expires', alive && when(s.expires_at)], ['Ended', s.ended_at && when(s.ended_at)],
      ['Detail', name(s.detail, 500)],
      ['CPU', figures?.cpu !== undefined && `${(100 * figures.cpu).toFixed(0)} %`],
      ['Memory', figures && !figures.missing && `${bytes(figures.memory)}${figures.limit ? ` of ${bytes(figures.limit)}` : ''}`],
      ['Processes', figures && !figures.missing && String(figures.pids)],
      ['Labels', s.labels && Object.entries(s.labels).map(([k, v]) => `${name(k)}=${name(v)}`).join(', ')],
    ]} />
    {alive && <p><Action kind="danger" confirm="End this sandbox? Its commands are killed." run={() => send('DELETE', url`/v1/sandboxes/${id}`).then(reload)}>End the sandbox</Action></p>}
    <nav class="tabs" aria-label="Parts of the sandbox">{tabs.map((t) =>
      <a key={t} href={'#' + url`/sandboxes/${id}` + `?tab=${t}`} aria-current={t === tab ? 'page' : undefined}>{t[0].toUpperCase() + t.slice(1)}</a>)}</nav>
    {tab === 'shells' && <Shells sandbox={id} open={parameters.get('shell') ?? undefined} session={session} alive={alive && own} />}
    {tab === 'terminal' && <TerminalView key={id} sandbox={id} />}
    {tab === 'files' && (alive ? <Files base={url`/v1/sandboxes/${id}/files`} root="/workspace" writable={session.direct && !s.read_only} /> :
      <Empty>The sandbox has ended. {s.workspace && <a href={'#' + url`/workspaces/${s.workspace}`}>Open its workspace.</a>}</Empty>)}
    {tab === 'changes' && <OverlayView id={id} session={session} />}
    {tab === 'egress' && <EgressView id={id} />}
  </>;
}

function Shells({ sandbox, open, session, alive }: { sandbox: string; open?: string; session: Session; alive: boolean }) {
  const { data, error, reload } = useLoad(() => get<List<Shell>>(url`/v1/sandboxes/${sandbox}/shells`), [sandbox]);
  const soon = useThrottled(reload, 300);
  useLive('events', (e: ServiceEvent) => { if (e.sandbox === sandbox && e.type.startsWith('shell.')) soon(); }, soon);
  const items = data?.items ?? [];
  const shown = items.find((s) => s.id === open) ?? (open ? undefined : items.at(-1));
  const form = useRef<HTMLFormElement>(null);
  return <>
    <Failure error={error} />
    {data && items.length === 0 && <Empty>No background command was started in this sandbox.</Empty>}
    {items.length > 0 && <Table label="Shells" items={items} keyOf={(s) => s.id} columns={[
      { head: 'Id', cell: (s) => <a class="mono" title={s.id} aria-current={s === shown ? 'true' : undefined} href={'#' + url`/sandboxes/${sandbox}` + '?shell=' + encodeURIComponent(s.id)}>{short(s.id)}</a> },
      { head: 'Command', cell: (s) => <code class="wrap">{name(s.argv.join(' '), 120)}</code> },
      { head: 'State', cell: (s) => <Badge text={s.result ? ending(s.result.ending, s.result.exit_code) : s.state} /> },
      { head: 'Started', cell: (s) => <span class="mono" title={when(s.started_at)}>{clock(s.started_at).slice(0, 8)}</span> },
      { head: 'Output', number: true, cell: (s) => bytes(s.stdout_end + s.stderr_end) },
      { head: '', cell: (s) => s.state === 'running' && <Action kind="danger" confirm="Kill this command and what it started?" run={() => send('DELETE', url`/v1/shells/${s.id}`).then(reload)} label={`Kill ${s.id}`}>Kill</Action> },
    ]} />}
    {alive && session.direct && <form ref={form} class="bar" onSubmit={onSubmit(async (d) => {
      const command = String(d.get('command'));
      await send('POST', url`/v1/sandboxes/${sandbox}/shells`, { command });
      form.current?.reset();
      location.hash = url`/sandboxes/${sandbox}`;
      reload();
    })}>
      <Field label="Start a background command"><input name="command" required spellcheck={false} autocomplete="off" /></Field>
      <button class="primary">Start</button>
    </form>}
    {shown && <ShellOutput key={shown.id} shell={shown} alive={alive && session.direct} />}
  </>;
}

function ShellOutput({ shell, alive }: { shell: Shell; alive: boolean }) {
  const [stream, setStream] = useState<'stdout' | 'stderr'>('stdout');
  if (shell.tty && alive && shell.state === 'running') return <TerminalView sandbox={shell.sandbox_id} shell={shell.id} />;
  return <section aria-label={`Output of ${short(shell.id)}`}>
    <h2>Output of <span class="mono">{short(shell.id)}</span></h2>
    {shell.result && <p>{ending(shell.result.ending, shell.result.exit_code)} after {duration(shell.result.duration_ms)}, peak memory {bytes(shell.result.usage.memory_peak_bytes)} {name(shell.result.detail, 300)}</p>}
    <div class="tabs" role="group" aria-label="Stream">
      {(['stdout', 'stderr'] as const).map((s) => <button type="button" key={s} aria-pressed={s === stream} onClick={() => setStream(s)}>{s}</button>)}
    </div>
    <LogView shell={shell.id} stream={stream} />
  </section>;
}

function EgressView({ id }: { id: string }) {
  const { data: e, error, reload } = useLoad(() => get<EgressState>(url`/v1/sandboxes/${id}/egress`), [id]);
  const soon = useThrottled(reload, 500);
  useLive('audit', (list: List<AuditRecord>) => { if (list.items.some((r) => r.sandbox === id && r.action.startsWith('egress'))) soon(); }, soon);
  if (!e) return <Failure error={error} />;
  return <>
    <Failure error={error} />
    <Facts list={[['Open connections', String(e.open)], ['Sent', bytes(e.sent)], ['Received', bytes(e.received)], ['Allowed', String(e.allowed)], ['Refused', String(e.refused)]]} />
    <h2>Rules</h2>
    {(e.rules ?? []).length === 0 ? <Empty>Without rules, this sandbox can connect to nothing.</Empty> :
      <Table label="Egress rules" items={e.rules} keyOf={(r) => JSON.stringify(r)} columns={[
        { head: 'Host', cell: (r) => name(r.host) }, { head: 'Ports', cell: (r) => (r.ports ?? []).join(', ') || 'default' },
        { head: 'Protocol', cell: (r) => r.protocol ?? 'tls' }, { head: 'Methods', cell: (r) => (r.methods ?? []).join(' ') || 'all' },
        { head: 'Paths', cell: (r) => name((r.paths ?? []).join(' ')) || 'all' }, { head: 'Verdict', cell: (r) => <Badge text={r.deny ? 'deny' : 'allow'} /> },
      ]} />}
    <h2>Last connections</h2>
    {(e.recent ?? []).length === 0 ? <Empty>There was no connection.</Empty> :
      <Table label="Last connections" items={e.recent} keyOf={(c) => c.time + c.host + c.port} columns={[
        { head: 'Time', cell: (c) => clock(c.time) }, { head: 'Verdict', cell: (c) => <Badge text={c.allowed ? 'allow' : 'refused'} /> },
        { head: 'To', cell: (c) => <span class="mono">{name(`${c.method ? c.method + ' ' : ''}${c.host}:${c.port}${c.path ?? ''}`, 120)}</span> },
        { head: 'Reason', cell: (c) => name(c.reason, 200) }, { head: 'Sent', number: true, cell: (c) => bytes(c.sent) },
        { head: 'Received', number: true, cell: (c) => bytes(c.received) },
      ]} />}
  </>;
}
