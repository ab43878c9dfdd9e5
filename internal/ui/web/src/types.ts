// The JSON of the service's interface, as far as the pages use it: see client/v1.

export interface Session { caller: string; operator: boolean; profile?: string; trust: number; direct: boolean; version: string; secret?: string }
export interface List<T> { items: T[]; truncated?: boolean }
export interface EgressRule { host: string; ports?: number[]; protocol?: string; methods?: string[]; paths?: string[]; deny?: boolean }
export interface Egress { rules: EgressRule[]; secrets?: string[] }
export interface Sandbox {
  id: string; caller?: string; state: string; template: string; runtime: string; image: string; workspace?: string;
  read_only?: boolean; mode?: string; class?: string; labels?: Record<string, string>; egress?: Egress; session?: string;
  created_at: string; expires_at: string; idle_ms: number; last_use_at: string; warm: boolean; ended_at?: string;
  reason?: string; detail?: string;
}
export interface Figures {
  id: string; at: string; missing?: string; cpu_ms: number; memory_bytes: number; memory_limit_bytes?: number; pids: number;
}
export interface Result {
  ending: string; exit_code: number; signal?: number; duration_ms: number; detail?: string;
  usage: { cpu_user_ms: number; cpu_system_ms: number; memory_peak_bytes: number };
}
export interface Shell {
  id: string; sandbox_id: string; argv: string[]; state: string; started_at: string; result?: Result; tty?: boolean;
  stdout_start: number; stdout_end: number; stderr_start: number; stderr_end: number;
}
export interface FileInfo { name: string; path: string; type: string; size: number; mode: string; mod_time: string; target?: string }
export interface Workspace {
  name: string; created_at: string; sandboxes: string[]; quota_bytes?: number; used_bytes?: number; overlays?: number;
  snapshots?: number; claim?: string;
}
export interface Snapshot { id: string; label?: string; created_at: string; size_bytes?: number }
export interface Overlay { id: string; workspace: string; created_at: string; live: boolean; ended_at?: string; expires_at?: string; changes: number }
export interface Change {
  path: string; path_base64?: string; kind: string; type?: string; size: number; size_before: number; diff?: string; binary?: boolean;
  truncated?: boolean; dropped?: boolean; conflict?: { by?: string };
}
export interface Diff { overlay: Overlay; changes: Change[]; added: number; changed: number; removed: number; truncated?: boolean }
export interface Commit { paths: string[]; left: number }
export interface EgressConnection {
  time: string; host: string; port: number; protocol?: string; method?: string; path?: string; allowed: boolean; reason: string;
  sent: number; received: number; duration_ms: number;
}
export interface EgressState extends Egress {
  open: number; sent: number; received: number; allowed: number; refused: number; recent: EgressConnection[];
}
export interface Approval {
  id: string; kind: string; state: string; call: string; caller: string; session?: string; profile?: string; tool: string; trust: number;
  input?: unknown; rule: string; reason?: string; created_at: string; expires_at: string; decided_at?: string; by?: string;
  scope?: string; note?: string; modified?: unknown; escalated?: string;
}
export interface ApprovalEvent { type: string; approval: Approval }
export interface AuditRecord {
  seq: number; time: string; kind: string; call?: string; caller?: string; token?: string; profile?: string; trust?: number;
  session?: string; via?: string; action: string; input?: unknown; input_bytes?: number; input_hash?: string; verdict?: string;
  rule?: string; approval?: string; by?: string; sandbox?: string; workspace?: string; image?: string; ending?: string;
  exit_code?: number; duration_ms?: number; cpu_ms?: number; memory_peak_bytes?: number; stdout_bytes?: number;
  stderr_bytes?: number; error?: string; count?: number; hash: string;
  egress?: { host?: string; port?: number; protocol?: string; method?: string; path?: string; address?: string; reason: string; sent: number; received: number };
}
export interface AuditReport { ok: boolean; records: number; head: string; problems: { seq: number; kind: string; message: string }[]; more?: boolean }
export interface Pool {
  template: string; image: string; min: number; max: number; target: number; adaptive?: boolean; creating: number; warm: number;
  leased: number; waiting: number; created_total: number; failed_total: number; last_error?: string;
}
export interface Overview {
  at: string; pools: Pool[]; sandboxes: Record<string, number>; problems: string[];
  calls: { each: number[]; endings: Record<string, number>; p50_ms: number; p95_ms: number; p99_ms: number };
}
export interface ServiceEvent {
  id: number; at: string; type: string; caller?: string; sandbox?: string; shell?: string; template?: string; workspace?: string;
  image?: string; reason?: string;
}
export interface Image {
  ref: string; id: string; size_bytes: number; created_at: string; used_at?: string; used_by?: string[]; pinned?: boolean; digests?: string[];
}
export interface Template {
  name: string; state: string; error?: string; file?: string; ready_at?: string; image: string; image_id?: string; class: string;
  limits: { memory_bytes: number; cpus: number; pids: number; tmp_bytes: number; scratch_bytes: number; open_files: number };
  env?: string[]; user?: string; warmup?: { argv: string[]; background?: boolean }[];
  pool: { min: number; max: number; rate: number; parallel: number; adaptive: boolean };
}
export interface Token {
  id: string; caller: string; profile?: string; trust: number; operator?: boolean; note?: string; created_at: string; expires_at?: string;
  revoked_at?: string; last_use_at?: string; secret?: string;
}
