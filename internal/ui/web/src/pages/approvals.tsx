import { useState } from 'preact/hooks';
import { get, message, send, url } from '../api';
import { useLive, useLoad, useNow, useThrottled } from '../live';
import { Badge, Empty, Facts, Failure, Field, Table } from '../parts';
import { age, duration, name, pretty, visible, when } from '../text';
import type { Approval, ApprovalEvent, List, Session } from '../types';

export function ApprovalsPage({ session }: { session: Session }) {
  const [pending, setPending] = useState<Map<string, Approval>>();
  const decided = useLoad(() => get<List<Approval>>('/v1/approvals?limit=50'));
  const soon = useThrottled(decided.reload, 300);
  useLive('approvals', (e: ApprovalEvent) => {
    setPending((was) => {
      const next = new Map(was);
      if (e.approval.state === 'pending') next.set(e.approval.id, e.approval);
      else next.delete(e.approval.id);
      return next;
    });
    if (e.approval.state !== 'pending') soon();
  }, () => { setPending(new Map()); soon(); });
  const list = [...(pending?.values() ?? [])].sort((a, b) => a.created_at < b.created_at ? -1 : 1);
  const old = (decided.data?.items ?? []).filter((a) => a.state !== 'pending');
  return <>
    <h1>Approvals</h1>
    <p role="status">{pending ? `${list.length} ${list.length === 1 ? 'call waits' : 'calls wait'} for an answer.` : 'Loading…'}</p>
    {list.map((a) => <Pending key={a.id} approval={a} session={session} />)}
    <h2>Answered</h2>
    <Failure error={decided.error} />
    {old.length === 0 ? <Empty>No request was answered yet.</Empty> : <Table label="Answered approval requests" items={old} keyOf={(a) => a.id} columns={[
      { head: 'Asked', cell: (a) => when(a.created_at) }, { head: 'State', cell: (a) => <Badge text={a.state} /> },
      { head: 'Caller', cell: (a) => name(a.caller) },
      { head: 'Tool', cell: (a) => <a href={'#' + url`/audit/${a.call}`}>{name(a.tool)}</a> },
      { head: 'Rule', cell: (a) => name(a.rule) }, { head: 'By', cell: (a) => name(a.by) }, { head: 'Note', cell: (a) => name(a.note, 100) },
    ]} />}
  </>;
}

function Pending({ approval: a, session }: { approval: Approval; session: Session }) {
  const now = useNow();
  const [note, setNote] = useState('');
  const [scope, setScope] = useState('call');
  const [input, setInput] = useState<string>();
  const [error, setError] = useState<string>();
  const [busy, setBusy] = useState(false);
  const answer = async (action: string) => {
    setBusy(true);
    setError(undefined);
    try {
      let changed: unknown;
      if (action === 'modify') {
        try { changed = JSON.parse(input!); } catch (e) { throw new Error(`The input is not JSON: ${message(e)}`); }
      }
      await send('POST', url`/v1/approvals/${a.id}/answer`, { action, scope, note: note || undefined, input: changed });
    } catch (e) {
      setError(message(e));
      setBusy(false);
    }
  };
  const left = Date.parse(a.expires_at) - now;
  return <section class="card" aria-label={`Request of ${name(a.caller)} for ${name(a.tool)}`}>
    <h2>{name(a.tool)} <Badge text={a.kind} /></h2>
    <Facts list={[['Caller', name(a.caller)], ['Profile', name(a.profile)], ['Trust', String(a.trust)], ['Session', name(a.session)], ['Rule', name(a.rule)],
      ['Reason', name(a.reason, 500)], ['Asked', `${age(a.created_at, now)} ago`], ['Expires', left > 0 ? `in ${duration(left)}` : 'now'], ['Escalated', name(a.escalated)]]} />
    {input === undefined ? <pre class="file" tabIndex={0} aria-label="Input">{visible(pretty(a.input))}</pre> :
      <Field label="Changed input (JSON)"><textarea rows={8} spellcheck={false} class="mono" value={input} onInput={(e) => setInput(e.currentTarget.value)} /></Field>}
    {session.operator ? <>
      <div class="bar">
        <Field label="Note"><input value={note} onInput={(e) => setNote(e.currentTarget.value)} /></Field>
        <Field label="Scope"><select value={scope} onChange={(e) => setScope(e.currentTarget.value)}><option value="call">this call</option><option value="session">the session</option></select></Field>
      </div>
      <div class="row">
        {input === undefined ? <>
          <button type="button" class="primary" disabled={busy} onClick={() => void answer('approve')}>Approve</button>
          <button type="button" class="danger" disabled={busy} onClick={() => void answer('deny')}>Deny</button>
          <button type="button" disabled={busy} onClick={() => setInput(pretty(a.input))}>Change the input</button>
        </> : <>
          <button type="button" class="primary" disabled={busy} onClick={() => void answer('modify')}>Approve with this input</button>
          <button type="button" disabled={busy} onClick={() => setInput(undefined)}>Keep the input</button>
        </>}
      </div>
    </> : <p>An operator answers this.</p>}
    <Failure error={error} />
  </section>;
}
