// What sandboxes, callers and images name and write is untrusted. Everything goes to the page as
// text nodes, so it can never become markup. The functions here also keep it from hiding something:
// control characters and changes of the writing direction become visible.

// Characters without a shape of their own, which could hide text or make one name look like
// another: directions, joiners, tags, variation selectors, fillers, and every space but U+0020. They
// are those that the command line escapes, and the blank letters, marks and symbols.
const hidden = /(?! )[\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

// eslint-disable-next-line no-control-regex
const control = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

function codePoint(c: string): string {
  return '⟨U+' + c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0') + '⟩';
}

// visible returns text with its invisible characters made visible. It keeps tabs and line feeds.
export function visible(text: string): string {
  return text.replace(control, codePoint).replace(hidden, codePoint);
}

// name is visible for a single line, shortened to n characters.
export function name(text: string | undefined, n = 200): string {
  if (!text) return '';
  const line = visible(text.length > n ? text.slice(0, n) + '…' : text);
  return line.replace(/[\n\t]/g, codePoint);
}

// eslint-disable-next-line no-control-regex
const escapes = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~])/g;

// output returns a line of a command's output without escape sequences, such as colours.
export function output(line: string): string {
  return visible(line.includes('\u001b') ? line.replace(escapes, '') : line);
}

export function bytes(n: number | undefined): string {
  if (!n) return '0';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const i = Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  const v = n / 2 ** (10 * i);
  return (i === 0 || v >= 100 ? v.toFixed(0) : v.toFixed(1)) + ' ' + units[i];
}

export function duration(ms: number): string {
  if (ms < 1) return ms <= 0 ? '0 ms' : ms.toFixed(2) + ' ms';
  if (ms < 1000) return ms.toFixed(ms < 10 ? 1 : 0) + ' ms';
  const s = ms / 1000;
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + Math.floor(s % 60) + ' s';
  if (s < 86400) return Math.floor(s / 3600) + ' h ' + Math.floor((s % 3600) / 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor((s % 86400) / 3600) + ' h';
}

export function age(at: string | undefined, now: number): string {
  if (!at || at.startsWith('0001')) return '–';
  return duration(Math.max(0, Math.floor((now - Date.parse(at)) / 1000) * 1000)).replace(/^0 ms$/, '0 s');
}

export function clock(at: string): string {
  const d = new Date(at);
  return Number.isNaN(d.getTime()) ? at : d.toLocaleTimeString([], { hour12: false }) + '.' + String(d.getMilliseconds()).padStart(3, '0');
}

export function when(at: string | undefined): string {
  if (!at || at.startsWith('0001')) return '–';
  const d = new Date(at);
  return d.toLocaleDateString() + ' ' + d.toLocaleTimeString([], { hour12: false });
}

export function short(id: string): string {
  return id.length > 13 ? id.slice(-8) : id;
}

export function pretty(v: unknown): string {
  return v === undefined ? '' : JSON.stringify(v, null, 2);
}
