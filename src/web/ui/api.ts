/** Requests to the console's server. */

export interface Session {
  user: string;
  fullName?: string;
  cluster?: string;
  namespace: string;
  capabilities: ("portal" | "overview" | "resize")[];
  /** The page after the login. */
  start: "portal" | "overview";
}

export type Action = "start" | "stop" | "reset";
export type Requested = "Running" | "Stopped";

export interface Row {
  name: string;
  uid?: string;
  requested: Requested;
  running: boolean;
  ready?: { status: "True" | "False" | "Unknown"; reason: string; message: string };
  system?: string;
  consoleUser?: string;
  /** The pool that has assigned the VM to the user. */
  pool?: string;
  may: string[];
  /** For users who see all VMs. */
  facts?: Facts;
}

export interface Facts {
  /** A timestamp of RFC 3339: the last start or stop. */
  since?: string;
  cpus: number;
  /** In bytes. */
  ram: number;
  node?: string;
  assignedTo?: string;
  /** Address of the connected user. */
  usedFrom?: string;
}

/** Totals of all VMs. `time` is in seconds since 1970, `ram` in bytes. */
export interface Sample {
  time: number;
  running: number;
  cpus: number;
  ram: number;
}

/** A pool that the user may use. */
export interface PoolRow {
  name: string;
  may: string[];
  /** Number of VMs that users can get at once. */
  free: number;
  /** Number of users without a VM. */
  waiting: number;
  assignment?: Assignment;
  /** Only if the user waits. */
  queue?: Queue;
}

export interface Queue {
  /** 1 for the user who gets the next VM. */
  place: number;
  /** Number of users who wait. */
  of: number;
  /** Reason of the pool's condition `Ready`. */
  reason?: string;
}

export interface Assignment {
  state: "Pending" | "Waiting" | "Binding" | "Assigned" | "NameMismatch" | "Ending";
  vm?: string;
  message?: string;
  /** A timestamp of RFC 3339. After it, another user can get the VM. */
  expires?: string;
}

export type SizeField = "cpus" | "ram";

export interface VmDetails {
  /** What the VM may use: the request and the limit as texts. */
  size: Record<SizeField, { requested: string; limit: string }>;
  mayResize: boolean;
  usedCpus: number;
  /** In bytes. */
  usedRam: number;
  /** The image of a CD drive is its name. */
  disks: { name: string; size?: string; isCd?: boolean }[];
  /** Without a bridge, a network is behind the address of the pod. */
  networks: { name: string; bridge?: string }[];
  addresses: string[];
  /** The newest first. `time` is a timestamp of RFC 3339. */
  events: { time?: string; isWarning: boolean; isByUser: boolean; reason: string; note: string; count: number }[];
}

/** `status` is 0 if the server did not answer. */
export interface ApiError {
  status: number;
  reason: string;
  message?: string;
  /** The field with a wrong value, and its limit. */
  field?: string;
  limit?: string;
  /** The user who uses the VM. */
  user?: string;
  retryAfterSeconds?: number;
}

/** `file` is for virt-viewer. The other values are parts of the file. */
export interface ViewerFile {
  file: string;
  host: string;
  port: number;
  password?: string;
  validSeconds?: number;
}

export type Answer<T> = { ok: true; value: T } | { ok: false; error: ApiError };

const REQUEST_TIMEOUT_MS = 30_000;

async function request<T>(method: "GET" | "POST" | "PUT" | "DELETE", path: string, body?: object): Promise<Answer<T>> {
  try {
    const response = await fetch(`/api/v1/${path}`, {
      method,
      cache: "no-store",
      signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
      ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
    });
    if (response.ok) {
      return { ok: true, value: (response.status === 204 ? undefined : await response.json()) as T };
    }
    return { ok: false, error: await readError(response) };
  } catch {
    return { ok: false, error: { status: 0, reason: "NoAnswer" } };
  }
}

async function readError(response: Response): Promise<ApiError> {
  const error: ApiError = { status: response.status, reason: `HTTP ${response.status}` };
  const seconds = Number(response.headers.get("Retry-After"));
  if (seconds > 0) error.retryAfterSeconds = Math.ceil(seconds);
  try {
    const body = (await response.json()) as Record<string, unknown> | null;
    for (const key of ["reason", "message", "field", "limit", "user"] as const) {
      const value = body?.[key];
      if (typeof value === "string") error[key] = value;
    }
  } catch {
    // A proxy's error page has no reason in JSON: the HTTP status is the reason.
  }
  return error;
}

/** The ways to log in. */
export interface Ways {
  password: boolean;
  providers: { name: string; title: string }[];
}

export const getWays = () => request<Ways>("GET", "login");
export const providerUrl = (name: string, page: string) => `/api/v1/oidc/${encodeURIComponent(name)}?${new URLSearchParams({ page })}`;
export const getSession = () => request<Session>("GET", "session");
export const postLogin = (user: string, password: string) => request<Session>("POST", "login", { user, password });
export const postLogout = () => request<void>("POST", "logout");
export const postActive = () => request<void>("POST", "active");
export const getHistory = () => request<Sample[]>("GET", "history");
export const getDetails = (name: string) => request<VmDetails>("GET", `vms/${encodeURIComponent(name)}`);
/** The server rejects a change of another VM with the same name. */
export const putSize = ({ name, uid }: Row, size: Partial<Record<SizeField, string>>) =>
  request<void>("PUT", `vms/${encodeURIComponent(name)}/size`, { uid, ...size });
export const postAction = ({ name, uid }: Row, action: Action) =>
  request<void>("POST", `vms/${encodeURIComponent(name)}/actions`, { uid, do: action });
export const postAssignment = (pool: string) => request<void>("POST", `pools/${encodeURIComponent(pool)}/assignment`, {});
export const deleteAssignment = (pool: string) => request<void>("DELETE", `pools/${encodeURIComponent(pool)}/assignment`);
export const postViewerFile = (name: string) => request<ViewerFile>("POST", `vms/${encodeURIComponent(name)}/viewer-file`, {});
