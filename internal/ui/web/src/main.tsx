// The dashboard: who signed in, the pages, and what is around them.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { forgetSecret, get, keepSecret, message, onSignedOut, Problem, send } from './api';
import { useConnected, useLive } from './live';
import { Failure, onSubmit, parseRoute, type Route } from './parts';
import { name } from './text';
import type { ApprovalEvent, Session } from './types';
import { ApprovalsPage } from './pages/approvals';
import { AuditPage } from './pages/audit';
import { ImagesPage, TemplatesPage } from './pages/images';
import { OverviewPage } from './pages/overview';
import { SandboxPage } from './pages/sandbox';
import { SandboxesPage } from './pages/sandboxes';
import { TokensPage } from './pages/tokens';
import { WorkspacesPage } from './pages/workspaces';
import './style.css';

const pages: [path: string, title: string, operator?: boolean][] = [
  ['', 'Overview'], ['sandboxes', 'Sandboxes'], ['approvals', 'Approvals'], ['audit', 'Audit'], ['workspaces', 'Workspaces'],
  ['images', 'Images'], ['templates', 'Templates'], ['tokens', 'Tokens', true],
];

function App() {
  const [session, setSession] = useState<Session | null>();
  const [error, setError] = useState<string>();
  useEffect(() => {
    onSignedOut(() => setSession(null));
    get<Session>('/ui/session').then(setSession, (e) => {
      setSession(null);
      if (!(e instanceof Problem && e.status === 401)) setError(message(e));
    });
  }, []);
  if (session === undefined) return null;
  if (session === null) return <SignIn error={error} done={(s) => { setError(undefined); setSession(s); }} />;
  return <Frame session={session} signOut={() => { const out = () => { forgetSecret(); setSession(null); }; void send('DELETE', '/ui/session').then(out, out); }} />;
}

function SignIn({ done, error }: { done: (s: Session) => void; error?: string }) {
  const [failure, setFailure] = useState(error);
  const [busy, setBusy] = useState(false);
  return <main class="signin">
    <h1>orchestrator</h1>
    <form onSubmit={onSubmit(async (data) => {
      setBusy(true);
      setFailure(undefined);
      try {
        const session = (await send<Session>('POST', '/ui/session', { token: data.get('token') }))!;
        keepSecret(session.secret!);
        done(session);
      } catch (e) {
        setFailure(e instanceof Problem && e.status === 401 ? 'This token is not valid: it is unknown, revoked or has expired.' : message(e));
        setBusy(false);
      }
    })}>
      <label for="token">Token</label>
      <input id="token" name="token" type="password" required autocomplete="off" autofocus spellcheck={false} />
      <button class="primary" disabled={busy}>Sign in</button>
      <Failure error={failure} />
      <p class="hint">Make one with <code>orchestrator token create</code>.</p>
    </form>
  </main>;
}

function useRoute(): Route {
  const [route, set] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const f = () => set(parseRoute(location.hash));
    window.addEventListener('hashchange', f);
    return () => window.removeEventListener('hashchange', f);
  }, []);
  return route;
}

function usePending(): number {
  const [pending, set] = useState(new Set<string>());
  useLive('approvals', (e: ApprovalEvent) => set((was) => {
    const next = new Set(was);
    if (e.approval.state === 'pending') next.add(e.approval.id);
    else next.delete(e.approval.id);
    return next;
  }), () => set(new Set()));
  return pending.size;
}

function Frame({ session, signOut }: { session: Session; signOut: () => void }) {
  const route = useRoute();
  const page = route.path[0] ?? '';
  const connected = useConnected();
  const pending = usePending();
  const title = pages.find(([path]) => path === page)?.[1] ?? 'Not found';
  useEffect(() => { document.title = `${title} · orchestrator`; }, [title]);
  return <>
    <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to the page</a>
    <header>
      <a class="brand" href="#/">orchestrator</a>
      <nav aria-label="Pages">
        {pages.filter(([, , operator]) => !operator || session.operator).map(([path, text]) =>
          <a key={path} href={`#/${path}`} aria-current={path === page ? 'page' : undefined}>
            {text}{path === 'approvals' && pending > 0 && <span class="count" aria-label={`${pending} pending`}>{pending}</span>}
          </a>)}
      </nav>
      <div class="who">
        <span title={session.operator ? 'operator' : 'caller'}>{name(session.caller)}{session.operator && ' (operator)'}</span>
        <ThemeButton />
        <button type="button" onClick={signOut}>Sign out</button>
      </div>
    </header>
    <div class="connection" role="status">{!connected && 'The connection to the service is lost. Trying again…'}</div>
    <main id="main" tabIndex={-1}><Page route={route} session={session} /></main>
  </>;
}

function Page({ route, session }: { route: Route; session: Session }) {
  const [page, id] = route.path;
  switch (page) {
    case undefined: return <OverviewPage session={session} />;
    case 'sandboxes': return id ? <SandboxPage key={id} id={id} session={session} parameters={route.parameters} /> : <SandboxesPage session={session} />;
    case 'approvals': return <ApprovalsPage session={session} />;
    case 'audit': return <AuditPage call={id} session={session} parameters={route.parameters} />;
    case 'workspaces': return <WorkspacesPage name={id} session={session} parameters={route.parameters} />;
    case 'images': return <ImagesPage session={session} />;
    case 'templates': return <TemplatesPage session={session} />;
    case 'tokens': return <TokensPage session={session} />;
  }
  return <p>This page does not exist. <a href="#/">Open the overview.</a></p>;
}

const themes = ['auto', 'light', 'dark'];

function ThemeButton() {
  const [theme, set] = useState(localStorage.getItem('theme') ?? 'auto');
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem('theme', theme);
  }, [theme]);
  return <button type="button" aria-label={`Colours: ${theme}`} onClick={() => set(themes[(themes.indexOf(theme) + 1) % themes.length])}>
    {theme === 'dark' ? '☾' : theme === 'light' ? '☀' : '◐'}
  </button>;
}

render(<App />, document.getElementById('app')!);
