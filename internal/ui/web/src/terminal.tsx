// A terminal, by the WebSocket of the service: see docs/terminals.md.
import { FitAddon } from '@xterm/addon-fit';
import { Terminal } from '@xterm/xterm';
import '@xterm/xterm/css/xterm.css';
import { useEffect, useRef, useState } from 'preact/hooks';
import { secretProtocol, url } from './api';
import { Failure } from './parts';
import { bytes, name } from './text';

const protocol = 'orchestrator.pty.v1';
const maxMessage = 64 << 10;
const maxUntaken = 256 << 10;
// maxUndrawn bounds the output that waits to be drawn. Above it, the page leaves and attaches again
// when it is done, and the service says what it did not keep.
const maxUndrawn = 4 << 20;

interface Message { type: string; shell?: string; offset?: number; bytes?: number; from?: number; to?: number; result?: { ending: string; exit_code: number }; problem?: { detail: string } }

class Attached {
  private socket: WebSocket | undefined;
  private offset = 0;
  private undrawn = 0;
  private late = false; // left because the page is too slow
  private keys: Uint8Array[] = [];
  private sent = 0;
  private taken = 0;
  private ended = false;
  private pause = 250;
  private timer: number | undefined;

  constructor(private sandbox: string, private shell: string | undefined, private term: Terminal,
    private status: (text: string, error?: boolean) => void, private opened: (shell: string) => void) {
    this.connect();
  }

  close(): void {
    this.ended = true;
    window.clearTimeout(this.timer);
    this.socket?.close(1000);
  }

  private connect(): void {
    if (this.ended) return;
    const q = new URLSearchParams();
    if (this.shell) {
      q.set('shell', this.shell);
      if (this.offset > 0) q.set('offset', String(this.offset));
    } else {
      q.set('cols', String(this.term.cols));
      q.set('rows', String(this.term.rows));
    }
    const scheme = location.protocol === 'https:' ? 'wss:' : 'ws:';
    const socket = new WebSocket(`${scheme}//${location.host}${url`/v1/sandboxes/${this.sandbox}/pty`}?${q}`, [protocol, secretProtocol()]);
    socket.binaryType = 'arraybuffer';
    this.socket = socket;
    this.sent = this.taken = 0;
    socket.onmessage = (e) => typeof e.data === 'string' ? this.control(JSON.parse(e.data)) : this.output(new Uint8Array(e.data));
    socket.onclose = (e) => {
      if (socket !== this.socket || this.ended) return;
      if (this.late) return; // drawn attaches again
      if (e.code === 1008 || e.code === 1000) return;
      if (!this.shell) {
        this.status('The terminal could not be opened. The sandbox may have ended, or terminals are not for this caller.', true);
        return;
      }
      this.status('The connection is lost. Trying again…');
      this.timer = window.setTimeout(() => this.connect(), this.pause);
      this.pause = Math.min(5000, 2 * this.pause);
    };
  }

  private control(m: Message): void {
    switch (m.type) {
      case 'started':
        this.shell = m.shell;
        this.offset = m.offset ?? 0;
        this.pause = 250;
        this.status('');
        this.opened(m.shell!);
        this.resize();
        break;
      case 'taken':
        this.taken = m.bytes ?? 0;
        this.pump();
        break;
      case 'gap':
        this.offset = m.to ?? this.offset;
        this.term.write(`\r\n\x1b[7m ${bytes((m.to ?? 0) - (m.from ?? 0))} of output are not kept any more \x1b[0m\r\n`);
        break;
      case 'exit':
        this.ended = true;
        this.status(`The command ended: ${m.result?.ending} ${m.result?.ending === 'exited' ? m.result.exit_code : ''}`);
        break;
      case 'error':
        this.ended = true;
        this.status(name(m.problem?.detail, 500), true);
        break;
    }
  }

  private output(data: Uint8Array): void {
    if (this.late) return;
    this.offset += data.length;
    this.undrawn += data.length;
    this.term.write(data, () => {
      this.undrawn -= data.length;
      if (this.late && this.undrawn === 0) {
        this.late = false;
        this.connect();
      }
    });
    if (this.undrawn > maxUndrawn) {
      this.late = true;
      this.socket?.close(1000);
    }
  }

  type(keys: Uint8Array): void {
    if (this.ended) return;
    for (let i = 0; i < keys.length; i += maxMessage) this.keys.push(keys.subarray(i, i + maxMessage));
    this.pump();
  }

  private pump(): void {
    while (this.socket?.readyState === WebSocket.OPEN && this.keys.length > 0 && this.sent - this.taken + this.keys[0].length <= maxUntaken) {
      const keys = this.keys.shift()!;
      this.sent += keys.length;
      this.socket.send(keys as Uint8Array<ArrayBuffer>);
    }
  }

  resize(): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: 'resize', cols: this.term.cols, rows: this.term.rows }));
  }
}

// newTerminal returns a terminal in which output can only draw: it reaches neither the title nor the
// clipboard, makes no links, and does not ask for the colours of the page.
function newTerminal(): Terminal {
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark';
  const term = new Terminal({
    cursorBlink: false, scrollback: 5000, fontSize: 13, fontFamily: 'ui-monospace, "DejaVu Sans Mono", monospace', screenReaderMode: true,
    linkHandler: null, windowOptions: {}, minimumContrastRatio: 3,
    theme: dark ? { background: '#0b0e14', foreground: '#d7dce5' } : { background: '#10141c', foreground: '#e3e7ee' },
  });
  // 0 to 2 set titles, 8 makes links, 9, 99 and 777 notify, 52 uses the clipboard, 4 to 19 and 104 to
  // 119 ask for and change colours, 1337 carries files.
  for (const code of [0, 1, 2, 4, 7, 8, 9, 10, 11, 12, 52, 99, 104, 110, 111, 112, 133, 633, 777, 1337]) {
    term.parser.registerOscHandler(code, () => true);
  }
  term.parser.registerDcsHandler({ final: 'q' }, () => true);
  return term;
}

export function TerminalView({ sandbox, shell, opened }: { sandbox: string; shell?: string; opened?: (shell: string) => void }) {
  const place = useRef<HTMLDivElement>(null);
  const [status, setStatus] = useState<{ text: string; error?: boolean }>({ text: 'Connecting…' });
  useEffect(() => {
    const term = newTerminal();
    const fit = new FitAddon();
    term.loadAddon(fit);
    term.open(place.current!);
    fit.fit();
    const encoder = new TextEncoder();
    const at = new Attached(sandbox, shell, term, (text, error) => setStatus({ text, error }), (id) => opened?.(id));
    const subscriptions = [
      term.onData((text) => at.type(encoder.encode(text))),
      term.onBinary((text) => at.type(Uint8Array.from(text, (c) => c.charCodeAt(0)))),
      term.onResize(() => at.resize()),
    ];
    // Shift+Escape leaves the terminal, which takes every other key.
    term.attachCustomKeyEventHandler((e) => {
      if (e.key !== 'Escape' || !e.shiftKey) return true;
      if (e.type === 'keydown') document.getElementById('terminal-leave')?.focus();
      return false;
    });
    const sizes = new ResizeObserver(() => fit.fit());
    sizes.observe(place.current!);
    term.focus();
    return () => {
      sizes.disconnect();
      for (const s of subscriptions) s.dispose();
      at.close();
      term.dispose();
    };
  }, [sandbox, shell]);
  return <section aria-label="Terminal" class="terminal">
    <div ref={place} class="terminal-place" />
    <p class="hint" role="status" id="terminal-leave" tabIndex={-1}>
      {status.error ? <Failure error={status.text} /> : status.text} Shift+Escape leaves the terminal.
    </p>
  </section>;
}
