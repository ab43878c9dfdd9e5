// The list of sandboxes, kept up to date by events.
import { useState } from 'preact/hooks';
import { get } from './api';
import { useLive, useLoad, useThrottled } from './live';
import type { Figures, List, Sandbox, ServiceEvent, Session } from './types';

export function useSandboxes(session: Session, ended: boolean): { items?: Sandbox[]; error?: string; reload: () => void } {
  const path = session.operator && !ended ? '/v1/sandboxes?all=true' : ended ? '/v1/sandboxes?ended=true' : '/v1/sandboxes';
  const list = useLoad(() => get<List<Sandbox>>(path), [path]);
  // A burst of events costs one request.
  const soon = useThrottled(list.reload, 500);
  useLive('events', (e: ServiceEvent) => {
    if (e.type.startsWith('sandbox.') || e.type === 'gap') soon();
  }, soon);
  return { items: list.data?.items, error: list.error, reload: list.reload };
}

// Use is what a sandbox uses now. CPU is a share of one processor.
export interface Use { cpu?: number; memory: number; limit?: number; pids: number; missing?: string }

export function useFigures(): Map<string, Use> {
  const [all, set] = useState<{ at: Map<string, Figures>; use: Map<string, Use> }>({ at: new Map(), use: new Map() });
  useLive('figures', (list: List<Figures>) => set((was) => {
    const at = new Map<string, Figures>();
    const use = new Map<string, Use>();
    for (const f of list.items) {
      const before = was.at.get(f.id);
      at.set(f.id, f);
      const passed = before ? Date.parse(f.at) - Date.parse(before.at) : 0;
      use.set(f.id, {
        memory: f.memory_bytes, limit: f.memory_limit_bytes, pids: f.pids, missing: f.missing,
        cpu: before && passed > 0 ? Math.max(0, (f.cpu_ms - before.cpu_ms) / passed) : undefined,
      });
    }
    return { at, use };
  }));
  return all.use;
}
