import { useState } from 'preact/hooks';
import { get, query, url } from '../api';
import { useLive, useLoad, useThrottled } from '../live';
import { Action, Badge, Cell, Empty, ending, Facts, Failure, Field, onSubmit, useNarrow, VirtualList } from '../parts';
import { bytes, clock, duration, name, pretty, short, visible, when } from '../text';
import type { Approval, AuditReport, AuditRecord, List, Session } from '../types';

// kept bounds the records that the page holds.
const kept = 5000;
const fields = ['caller', 'action', 'verdict', 'ending', 'call', 'sandbox'] as const;

export function AuditPage({ call, session, parameters }: { call?: string; session: Session; parameters: URLSearchParams }) {
  return call ? <CallPage call={call} /> : <Records key={parameters.toString()} session={session} parameters={parameters} />;
}

function Records({ session, parameters }: { session: Session; parameters: URLSearchParams }) {
  const wanted = Object.fromEntries(fields.map((f) => [f, parameters.get(f) ?? '']));
  const since = parameters.get('since') ?? '';
  const path = query('/v1/audit', { ...wanted, since: since && new Date(since).toISOString(), newest: true, limit: 1000 });
  const { data, error, reload, set } = useLoad(() => get<List<AuditRecord>>(path), [path]);
  const [report, setReport] = useState<AuditReport>();
  const narrow = useNarrow();
  useLive('audit', (news: List<AuditRecord>) => {
    if (news.truncated) return reload();
    const matching = news.items.filter((r) => fields.every((f) => !wanted[f] || r[f] === wanted[f]));
    if (matching.length > 0) {
      set((was) => {
        const last = was.items.at(-1)?.seq ?? 0;
        return { items: [...was.items, ...matching.filter((r) => r.seq > last)].slice(-kept), truncated: was.truncated };
      });
    }
  }, reload);
  const items = data ? [...data.items].reverse() : [];
  return <>
    <h1>Audit</h1>
    <form class="bar" aria-label="Search" onSubmit={onSubmit((d) => {
      location.hash = query('/audit', Object.fromEntries([...fields, 'since'].map((f) => [f, String(d.get(f) ?? '').trim()])));
    })}>
      {fields.map((f) => (f !== 'caller' || session.operator) && <Field key={f} label={f[0].toUpperCase() + f.slice(1)}><input name={f} defaultValue={wanted[f]} autocomplete="off" /></Field>)}
      <Field label="Since"><input name="since" type="datetime-local" defaultValue={since} /></Field>
      <button class="primary">Search</button>
      {session.operator && <Action run={async () => setReport(await get<AuditReport>('/v1/audit/verify'))}>Verify the chain</Action>}
    </form>
    {report && <p class={report.ok ? 'good' : 'failure'} role="status">
      {report.ok ? `The chain of ${report.records} records is whole. Head: ` : `The log is damaged in ${report.problems.length}${report.more ? ' or more' : ''} places: `}
      {report.ok ? <span class="mono break">{report.head}</span> : report.problems.map((p) => `record ${p.seq}: ${name(p.message, 200)}`).join('; ')}
    </p>}
    <Failure error={error} />
    <p role="status">{data ? `${items.length} records${data.truncated ? ', earlier ones are not shown' : ''}` : 'Loading…'}</p>
    {data && items.length === 0 ? <Empty>There is no such record.</Empty> :
      <VirtualList label="Audit records" class="audit" items={items} rowHeight={narrow ? 76 : 34} keyOf={(r) => r.seq} row={(r) => <>
        <Cell class="number minor">{r.seq}</Cell>
        <Cell class="time"><span title={when(r.time)}>{clock(r.time)}</span></Cell>
        <Cell><Badge text={r.kind} /></Cell>
        <Cell class="caller">{name(r.caller)}</Cell>
        <Cell class="id">{r.call ? <a href={'#' + url`/audit/${r.call}`}>{name(r.action)}</a> : name(r.action)}</Cell>
        <Cell>{r.verdict && <Badge text={r.verdict} />}</Cell>
        <Cell>{r.ending && <Badge text={r.ending === 'exited' ? ending(r.ending, r.exit_code) : r.ending} />}</Cell>
        <Cell class="detail mono">{name(detail(r), 160)}</Cell>
      </>} head={<>{['Seq', 'Time', 'Kind', 'Caller', 'Action', 'Verdict', 'Ending', 'Detail'].map((h) => <span role="columnheader" key={h}>{h}</span>)}</>} />}
  </>;
}

function detail(r: AuditRecord): string {
  if (r.error) return r.error;
  if (r.egress) return `${r.egress.method ?? ''} ${r.egress.host ?? r.egress.address ?? ''}:${r.egress.port ?? ''}${r.egress.path ?? ''} ${r.egress.reason}`;
  return r.input === undefined ? '' : JSON.stringify(r.input);
}

// CallPage shows one call as its stages in the order of time.
function CallPage({ call }: { call: string }) {
  const { data, error, reload } = useLoad(() => load(call), [call]);
  const soon = useThrottled(reload, 200);
  useLive('audit', (news: List<AuditRecord>) => { if (news.items.some((r) => r.call === call)) soon(); }, soon);
  if (!data) return <><h1>Call {short(call)}</h1><Failure error={error} /></>;
  const open = data.records.find((r) => r.kind === 'open');
  const close = data.records.find((r) => r.kind === 'close');
  const any = close ?? open ?? data.records[0];
  if (!any) return <><h1>Call {short(call)}</h1><Empty>The audit log has no record of this call.</Empty></>;
  const stages = stagesOf(data.records, data.approval);
  const begin = stages[0].at;
  const total = Math.max(1, stages.at(-1)!.at - begin);
  return <>
    <h1>Call of {name(any.action)} {close?.ending ? <Badge text={ending(close.ending, close.exit_code)} /> : <Badge text="running" />}</h1>
    <Facts list={[['Call', <span class="mono break">{call}</span>], ['Caller', name(any.caller)], ['Profile', name(any.profile)], ['Via', name(any.via)], ['Session', name(any.session)],
      ['Verdict', any.verdict && <Badge text={any.verdict} />], ['Rule', name(any.rule)], ['Answered by', name(any.by)],
      ['Sandbox', any.sandbox && <a class="mono" href={'#' + url`/sandboxes/${any.sandbox}`}>{short(any.sandbox)}</a>], ['Workspace', name(any.workspace)],
      ['Duration', close?.duration_ms !== undefined && duration(close.duration_ms)], ['CPU', close?.cpu_ms !== undefined && duration(close.cpu_ms)],
      ['Peak memory', close?.memory_peak_bytes && bytes(close.memory_peak_bytes)], ['Output', close && bytes((close.stdout_bytes ?? 0) + (close.stderr_bytes ?? 0))],
      ['Error', name(close?.error, 500)]]} />
    <h2>Stages</h2>
    <ol class="timeline">{stages.map((s, i) => {
      const until = stages[i + 1]?.at ?? s.at;
      return <li key={i}>
        <span class="mono">{i === 0 ? clock(new Date(s.at).toISOString()) : `+${duration(s.at - begin)}`}</span>
        <span class="track" aria-hidden="true"><svg viewBox="0 0 100 6" preserveAspectRatio="none"><rect x={(100 * (s.at - begin)) / total} width={Math.max(0.6, (100 * (until - s.at)) / total)} height="6" /></svg></span>
        <span>{s.text}{until > s.at && <small> then {duration(until - s.at)}</small>}</span>
      </li>;
    })}</ol>
    <h2>Input</h2>
    <pre class="file" tabIndex={0}>{visible(pretty(open?.input))}</pre>
    {close?.input !== undefined && <><h2>Input that the approver put in its place</h2><pre class="file" tabIndex={0}>{visible(pretty(close.input))}</pre></>}
  </>;
}

async function load(call: string): Promise<{ records: AuditRecord[]; approval?: Approval }> {
  const records = (await get<List<AuditRecord>>(query('/v1/audit', { call }))).items;
  const id = records.find((r) => r.approval)?.approval;
  // Without the approval request, which is not kept as long, the stages still show.
  const approval = id ? await get<Approval>(url`/v1/approvals/${id}`).catch(() => undefined) : undefined;
  return { records, approval };
}

interface Stage { at: number; text: string }

function stagesOf(records: AuditRecord[], approval?: Approval): Stage[] {
  const stages: Stage[] = records.map((r) => ({ at: Date.parse(r.time), text: stageText(r) }));
  if (approval) {
    stages.push({ at: Date.parse(approval.created_at), text: `approval asked by rule ${name(approval.rule)}` });
    if (approval.decided_at) stages.push({ at: Date.parse(approval.decided_at), text: `${approval.state}${approval.by ? ` by ${name(approval.by)}` : ''}` });
  }
  const close = records.find((r) => r.kind === 'close');
  return stages.sort((a, b) => a.at - b.at || (close && a.text === stageText(close) ? 1 : 0));
}

function stageText(r: AuditRecord): string {
  switch (r.kind) {
    case 'open': return 'arrived and recorded';
    case 'close': return `ended: ${name(ending(r.ending, r.exit_code))}`;
    case 'egress': return `${r.verdict === 'deny' ? 'refused' : 'ended'} connection to ${name(r.egress?.host ?? r.egress?.address)}:${r.egress?.port}`;
  }
  return name(r.action);
}
