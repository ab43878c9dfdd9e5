// The output of a command that does not run on a terminal, read by offset while it is written.
import { useEffect, useRef, useState } from 'preact/hooks';
import { get, message, Problem, query, request, url } from './api';
import { Failure, VirtualList } from './parts';
import { bytes, output } from './text';
import type { Shell } from './types';

// Bounds of what is kept: older lines are dropped.
const maxLines = 10_000;
const maxLine = 2_000;

// Lines splits output into lines, and keeps the last ones.
export class Lines {
  list: string[] = [];
  dropped = 0;
  private decoder = new TextDecoder();
  private open = false; // the last line has no end yet

  add(piece: Uint8Array): void {
    const text = this.decoder.decode(piece, { stream: true });
    if (!text) return;
    // Only the last lines of a large piece can be seen.
    const parts = text.split('\n');
    if (this.open && parts.length > 0) parts[0] = this.list.pop()! + parts[0];
    this.open = parts[parts.length - 1] !== '';
    if (!this.open) parts.pop();
    const skip = Math.max(0, parts.length - maxLines);
    this.dropped += skip;
    for (let i = skip; i < parts.length; i++) this.push(parts[i]);
    // Cut rarely: it copies the list.
    if (this.list.length > 2 * maxLines) {
      this.dropped += this.list.length - maxLines;
      this.list = this.list.slice(-maxLines);
    }
  }

  note(text: string): void {
    this.open = false;
    this.list.push(text);
  }

  private push(line: string): void {
    if (line.endsWith('\r')) line = line.slice(0, -1);
    while (line.length > maxLine) {
      this.list.push(line.slice(0, maxLine));
      line = line.slice(maxLine);
    }
    this.list.push(line);
  }
}

const formRaw = 'application/octet-stream';

// readOutput reads one stream of a shell from an offset to its end. Its requests end with a gap, a
// restart of the service, or the shell; the next one continues.
async function readOutput(shell: string, stream: 'stdout' | 'stderr', lines: Lines, changed: () => void, status: (e?: string) => void, signal: AbortSignal): Promise<void> {
  let offset = 0;
  for (let pause = 250; !signal.aborted;) {
    try {
      const res = await request('GET', query(url`/v1/shells/${shell}/output`, { stream, offset, follow: true }), { signal, headers: { Accept: formRaw } });
      const from = Number(res.headers.get('Orchestrator-Offset') ?? offset);
      if (from > offset) {
        lines.note(`… ${bytes(from - offset)} are not kept any more …`);
        offset = from;
      }
      status();
      pause = 250;
      const reader = res.body!.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        offset += value.length;
        lines.add(value);
        changed();
      }
      const now = await get<Shell>(url`/v1/shells/${shell}`, signal);
      const end = stream === 'stdout' ? now.stdout_end : now.stderr_end;
      if (now.state === 'ended' && offset >= end) return;
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof Problem && e.status >= 400 && e.status < 500 && e.status !== 429) {
        status(message(e));
        return;
      }
      status('The connection is lost. Trying again…');
    }
    await new Promise((f) => setTimeout(f, pause));
    pause = Math.min(5000, 2 * pause);
    changed();
  }
}

export function LogView({ shell, stream }: { shell: string; stream: 'stdout' | 'stderr' }) {
  const lines = useRef(new Lines());
  const [, setVersion] = useState(0);
  const [error, setError] = useState<string>();
  const [follow, setFollow] = useState(true);
  useEffect(() => {
    const stop = new AbortController();
    lines.current = new Lines();
    let drawn = 0;
    // However fast the output is, the page is drawn once per frame.
    const changed = () => {
      if (!drawn) drawn = requestAnimationFrame(() => { drawn = 0; setVersion((n) => n + 1); });
    };
    void readOutput(shell, stream, lines.current, changed, setError, stop.signal).then(changed);
    return () => { stop.abort(); cancelAnimationFrame(drawn); };
  }, [shell, stream]);
  const { list, dropped } = lines.current;
  return <>
    <div class="bar small">
      <label class="check"><input type="checkbox" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} /> follow</label>
      <span>{list.length.toLocaleString()} lines{dropped > 0 && `, ${dropped.toLocaleString()} earlier ones not kept`}</span>
    </div>
    <Failure error={error} />
    <VirtualList label={`Output of ${stream}`} class="log" items={list} rowHeight={18} follow={follow}
      keyOf={(_, i) => i + dropped} row={(line) => <code role="cell">{output(line)}</code>} />
  </>;
}
