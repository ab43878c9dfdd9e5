// Builds the dashboard into the directory that is given: app.js, app.css and index.html. The same
// sources and lock file give the same bytes.
import { build } from 'esbuild';
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';

const out = process.argv[2];
if (!out) throw new Error('usage: node build.mjs DIRECTORY');

// replaced replaces every match, and fails if the library is not the one that this was written for.
function replaced(text, pattern, by, times) {
  const found = text.match(pattern)?.length ?? 0;
  if (found !== times) throw new Error(`xterm.js: ${pattern} found ${found} times, want ${times}: see adoptedstyle.ts`);
  return text.replace(pattern, by);
}

// xterm.js makes <style> elements and style attributes, which the Content-Security-Policy forbids.
const xtermWithoutInlineStyle = {
  name: 'xterm-without-inline-style',
  setup(b) {
    b.onLoad({ filter: /@xterm\/xterm\/lib\/xterm\.mjs$/ }, async ({ path }) => {
      let text = await readFile(path, 'utf8');
      text = replaced(text, /[\w.]+\.createElement\("style"\)/g, 'adoptedStyle()', 3);
      text = replaced(text, /(\w+)\.setAttribute\("style",`\$\{\1\.getAttribute\("style"\)\|\|""\}\$\{(\w+)\};`\)/g,
        '($1.style.cssText+=$2+";")', 1);
      return { contents: text, loader: 'js' };
    });
  },
};

await build({
  entryPoints: { app: 'src/main.tsx' },
  outdir: out,
  bundle: true,
  minify: true,
  format: 'iife',
  target: 'es2022',
  charset: 'ascii',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'eof',
  inject: ['src/adoptedstyle.ts'],
  plugins: [xtermWithoutInlineStyle],
  logLevel: 'warning',
});
for (const name of ['index.html', 'icon.svg']) await copyFile(join('src', name), join(out, name));
