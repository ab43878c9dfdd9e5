// Files of a sandbox or of a workspace at rest. Both have the same requests.
import { useState } from 'preact/hooks';
import { get, message, query, request, save, send } from './api';
import { useLoad } from './live';
import { Action, Empty, Failure, Field, onSubmit, Table } from './parts';
import { bytes, name, visible, when } from './text';
import type { FileInfo, List } from './types';

// maxView bounds how much of a file is shown.
const maxView = 256 << 10;

export function Files({ base, root, writable }: { base: string; root: string; writable: boolean }) {
  const [dir, setDir] = useState(root);
  const [open, setOpen] = useState<string>();
  const { data, error, reload } = useLoad(() => get<List<FileInfo>>(query(base, { path: dir, list: true })), [base, dir]);
  const join = (entry: string) => dir === '' || dir.endsWith('/') ? dir + entry : `${dir}/${entry}`;
  const parent = () => { const i = dir.lastIndexOf('/'); return i < root.length ? root : dir.slice(0, i); };
  const items = [...(data?.items ?? [])].sort((a, b) => Number(b.type === 'dir') - Number(a.type === 'dir') || (a.name < b.name ? -1 : 1));
  return <section aria-label="Files">
    <div class="bar">
      <strong class="mono" aria-label="Directory">{name(dir) || '/'}</strong>
      {dir !== root && <button type="button" onClick={() => { setDir(parent()); setOpen(undefined); }}>Up</button>}
      <button type="button" onClick={reload}>Reload</button>
    </div>
    <Failure error={error} />
    {data?.truncated && <p>Only the first {items.length} entries are shown.</p>}
    {data && items.length === 0 && <Empty>This directory is empty.</Empty>}
    {items.length > 0 && <Table label="Files" items={items} keyOf={(f) => f.name} columns={[
      { head: 'Name', cell: (f) => f.type === 'dir' ? <button type="button" class="link" onClick={() => { setDir(join(f.name)); setOpen(undefined); }}>{name(f.name)}/</button> :
        f.type === 'file' ? <button type="button" class="link" onClick={() => setOpen(join(f.name))}>{name(f.name)}</button> :
        <span>{name(f.name)}{f.target !== undefined && ` → ${name(f.target)}`} ({f.type})</span> },
      { head: 'Size', number: true, cell: (f) => f.type === 'file' ? bytes(f.size) : '' },
      { head: 'Mode', cell: (f) => <span class="mono">{f.mode}</span> },
      { head: 'Changed', cell: (f) => when(f.mod_time) },
      { head: '', cell: (f) => <span class="row">
        {f.type === 'file' && <Action run={() => save(query(base, { path: join(f.name) }), f.name)} label={`Download ${name(f.name)}`}>Download</Action>}
        {writable && <Action kind="danger" confirm={`Remove ${name(f.name, 60)}?`} label={`Remove ${name(f.name)}`}
          run={() => send('DELETE', query(base, { path: join(f.name), recursive: f.type === 'dir' || undefined })).then(reload)}>Remove</Action>}
      </span> },
    ]} />}
    {writable && <Upload done={reload} put={(file) => request('PUT', query(base, { path: join(file.name) }), { body: file })}
      mkdir={(entry) => request('PUT', query(base, { path: join(entry), dir: true }))} />}
    {open && <FileView key={open} base={base} path={open} close={() => setOpen(undefined)} />}
  </section>;
}

function Upload({ put, mkdir, done }: { put: (f: File) => Promise<unknown>; mkdir: (name: string) => Promise<unknown>; done: () => void }) {
  const [error, setError] = useState<string>();
  const [status, setStatus] = useState('');
  const guard = async (f: () => Promise<void>) => {
    setError(undefined);
    try { await f(); } catch (e) { setError(message(e)); }
    setStatus('');
    done();
  };
  return <div class="bar">
    <Field label="Upload files"><input type="file" multiple onChange={(e) => {
      const input = e.currentTarget;
      void guard(async () => {
        for (const f of [...(input.files ?? [])]) {
          setStatus(`Uploading ${name(f.name, 60)}…`);
          await put(f);
        }
        input.value = '';
      });
    }} /></Field>
    <form class="row" onSubmit={onSubmit((d) => void guard(async () => { await mkdir(String(d.get('dir'))); }))}>
      <Field label="New directory"><input name="dir" required autocomplete="off" /></Field><button>Make</button>
    </form>
    <span role="status">{status}</span>
    <Failure error={error} />
  </div>;
}

async function head(base: string, path: string): Promise<{ text: string; binary: boolean; size: number }> {
  const res = await request('GET', query(base, { path, limit: maxView }), { headers: { Accept: 'application/octet-stream' } });
  const b = new Uint8Array(await res.arrayBuffer());
  return { text: new TextDecoder().decode(b), binary: b.includes(0), size: Number(res.headers.get('Orchestrator-Size') ?? b.length) };
}

function FileView({ base, path, close }: { base: string; path: string; close: () => void }) {
  const { data, error } = useLoad(() => head(base, path), [base, path]);
  return <section aria-label={`Content of ${name(path)}`}>
    <h2 class="mono">{name(path)}</h2>
    <p><button type="button" onClick={close}>Close</button> {data && data.size > maxView && `The first ${bytes(maxView)} of ${bytes(data.size)}.`}</p>
    <Failure error={error} />
    {data && (data.binary ? <Empty>This file is not text. Download it to see it.</Empty> : <pre class="file" tabIndex={0}>{visible(data.text)}</pre>)}
  </section>;
}
