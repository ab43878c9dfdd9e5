import { get, query, send } from '../api';
import { useLive, useLoad, useThrottled } from '../live';
import { Action, Badge, Empty, Facts, Failure, Table } from '../parts';
import { bytes, name, short, when } from '../text';
import type { Image, List, ServiceEvent, Session, Template } from '../types';

export function ImagesPage({ session }: { session: Session }) {
  const { data, error, reload } = useLoad(() => get<List<Image>>('/v1/images'));
  const soon = useThrottled(reload, 500);
  useLive('events', (e: ServiceEvent) => { if (e.type.startsWith('image.') || e.type.startsWith('template.')) soon(); }, soon);
  return <>
    <h1>Images</h1>
    <Failure error={error} />
    {data && data.items.length === 0 && <Empty>There is no image. Import one with <code>orchestrator image import</code>.</Empty>}
    {data && data.items.length > 0 && <Table label="Images" items={data.items} keyOf={(i) => i.ref + i.id} columns={[
      { head: 'Name', cell: (i) => name(i.ref) || '–' }, { head: 'Id', cell: (i) => <span class="mono" title={i.id}>{short(i.id.replace(/^sha256:/, '').slice(0, 12))}</span> },
      { head: 'Size', number: true, cell: (i) => bytes(i.size_bytes) }, { head: 'Imported', cell: (i) => when(i.created_at) },
      { head: 'Used', cell: (i) => when(i.used_at) }, { head: 'Used by', cell: (i) => i.used_by?.length ? <span title={name(i.used_by.join(', '), 2000)}>{i.used_by.length}</span> : '–' },
      { head: '', cell: (i) => session.operator && i.ref && <span class="row">
        <Action run={() => send(i.pinned ? 'DELETE' : 'PUT', query('/v1/images/pin', { ref: i.ref })).then(reload)} label={`${i.pinned ? 'Unpin' : 'Pin'} ${name(i.ref)}`}>{i.pinned ? 'Unpin' : 'Pin'}</Action>
        <Action kind="danger" confirm={`Remove image ${name(i.ref, 80)}?`} run={() => send('DELETE', query('/v1/images', { ref: i.ref })).then(reload)} label={`Remove ${name(i.ref)}`}>Remove</Action>
      </span> },
    ]} />}
  </>;
}

export function TemplatesPage({ session }: { session: Session }) {
  const { data, error, reload } = useLoad(() => get<List<Template>>('/v1/templates'));
  const soon = useThrottled(reload, 500);
  useLive('events', (e: ServiceEvent) => { if (e.type.startsWith('template.')) soon(); }, soon);
  return <>
    <h1>Templates</h1>
    {session.operator && <p><Action run={() => send('POST', '/v1/templates/reload').then(reload)}>Reload the files</Action></p>}
    <Failure error={error} />
    {data && data.items.length === 0 && <Empty>There is no template.</Empty>}
    {data?.items.map((t) => <section class="card" key={t.name} aria-label={`Template ${name(t.name)}`}>
      <h2>{name(t.name)} <Badge text={t.state} /></h2>
      <Failure error={t.error} />
      <Facts list={[['Image', name(t.image)], ['Class', t.class], ['User', name(t.user)], ['Memory', bytes(t.limits.memory_bytes)], ['CPUs', String(t.limits.cpus)],
        ['Processes', String(t.limits.pids)], ['Scratch', bytes(t.limits.scratch_bytes)], ['Warm', `${t.pool.min} to ${t.pool.max}${t.pool.adaptive ? ', adaptive' : ''}`],
        ['Rate', `${t.pool.rate} per second, ${t.pool.parallel} at once`], ['Variables', name((t.env ?? []).join(', '))],
        ['Warm-up', t.warmup?.map((w) => name(w.argv.join(' '), 100)).join('; ')], ['File', name(t.file)], ['Ready', when(t.ready_at)]]} />
    </section>)}
  </>;
}
