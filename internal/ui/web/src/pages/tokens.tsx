import { useRef, useState } from 'preact/hooks';
import { get, message, send, url } from '../api';
import { useLive, useLoad, useThrottled } from '../live';
import { Action, Badge, Empty, Failure, Field, onSubmit, Table } from '../parts';
import { name, when } from '../text';
import type { AuditRecord, List, Session, Token } from '../types';

export function TokensPage({ session }: { session: Session }) {
  const { data, error, reload } = useLoad(() => get<List<Token>>('/v1/tokens'));
  const soon = useThrottled(reload, 500);
  const [made, setMade] = useState<Token>();
  const [failure, setFailure] = useState<string>();
  const form = useRef<HTMLFormElement>(null);
  useLive('audit', (list: List<AuditRecord>) => { if (list.items.some((r) => r.action.startsWith('token.'))) soon(); }, soon);
  if (!session.operator) return <><h1>Tokens</h1><Empty>Only operators manage tokens.</Empty></>;
  return <>
    <h1>Tokens</h1>
    <form ref={form} class="bar" aria-label="Create a token" onSubmit={onSubmit(async (d) => {
      setFailure(undefined);
      setMade(undefined);
      const hours = Number(d.get('hours') || 0);
      try {
        setMade(await send<Token>('POST', '/v1/tokens', {
          caller: d.get('caller'), profile: d.get('profile') || undefined, trust: Number(d.get('trust')),
          operator: d.get('operator') === 'on' || undefined, ttl_ms: hours ? hours * 3600e3 : undefined, note: d.get('note') || undefined,
        }));
        form.current?.reset();
        reload();
      } catch (e) { setFailure(message(e)); }
    })}>
      <Field label="Caller"><input name="caller" required autocomplete="off" /></Field>
      <Field label="Profile"><input name="profile" autocomplete="off" /></Field>
      <Field label="Trust"><select name="trust"><option>0</option><option selected>1</option><option>2</option><option>3</option></select></Field>
      <Field label="Valid for hours"><input name="hours" type="number" min="1" max="87600" placeholder="until revoked" /></Field>
      <Field label="Note"><input name="note" autocomplete="off" /></Field>
      <label class="check"><input type="checkbox" name="operator" /> operator</label>
      <button class="primary">Create</button>
    </form>
    <Failure error={failure ?? error} />
    {made?.secret && <section class="card" role="status" aria-label="New token">
      <p>This is the token of {name(made.caller)}. It is shown once.</p>
      <p><input class="mono secret" readOnly value={made.secret} aria-label="Token" onFocus={(e) => e.currentTarget.select()} /></p>
      <p><button type="button" onClick={() => setMade(undefined)}>Done</button></p>
    </section>}
    {data && data.items.length === 0 && <Empty>There is no token.</Empty>}
    {data && data.items.length > 0 && <Table label="Tokens" items={data.items} keyOf={(t) => t.id} columns={[
      { head: 'Id', cell: (t) => <span class="mono">{t.id}</span> }, { head: 'Caller', cell: (t) => <>{name(t.caller)} {t.operator && <Badge text="operator" />}</> },
      { head: 'Profile', cell: (t) => name(t.profile) || 'default' }, { head: 'Trust', number: true, cell: (t) => t.trust }, { head: 'Note', cell: (t) => name(t.note, 80) },
      { head: 'Created', cell: (t) => when(t.created_at) }, { head: 'Expires', cell: (t) => when(t.expires_at) }, { head: 'Last use', cell: (t) => when(t.last_use_at) },
      { head: '', cell: (t) => t.revoked_at ? <Badge text="revoked" /> : <Action kind="danger" confirm={`Revoke token ${t.id} of ${name(t.caller, 60)}? Its requests end.`}
        run={() => send('DELETE', url`/v1/tokens/${t.id}`).then(reload)} label={`Revoke ${t.id}`}>Revoke</Action> },
    ]} />}
  </>;
}
