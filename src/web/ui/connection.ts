/** The connection to a device of a VM: a WebSocket with JSON texts, and with the bytes of the device as binary messages. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { getSession } from "./api";
import { CLOSE_CODE_LOGIN_ENDED, inputReports, reportInputTo, retryDelay, webSocketUrl } from "./live";
import { endLogin, loggedIn } from "./state";

/** `reason` is a reason of the server, or `Lost` if the connection was closed without a reason. */
export interface Closed {
  reason: string;
  user?: string;
  mayTake?: boolean;
}

/** `client` speaks with the device. `tries` counts the failures since the last connection. */
export type ConnectionState<Client> =
  | { is: "connecting" }
  | { is: "connected"; client: Client }
  | ({ is: "closed"; isRetried: boolean; tries: number } & Closed);

export interface Connection<Client> {
  state: ReadonlySignal<ConnectionState<Client>>;
  connect(takeOver?: boolean): void;
  disconnect(): void;
  /** Disconnects and removes all listeners. */
  dispose(): void;
}

/** The part of a connection that begins with the first message of the server. */
export interface Transfer {
  receive(data: ArrayBuffer): void;
  close(): void;
}

export interface Device<Code, Client> {
  /** The last part of the path in the API. */
  path: string;
  load(): Promise<Code>;
  /** `ready` shows the client to the page. Both functions have no effect after the end of the transfer. */
  start(code: Code, socket: WebSocket, ready: (client: Client) => void, end: (reason: string) => void): Transfer;
  /** The user may no longer see what the device has shown. */
  forget(): void;
}

interface Message extends Partial<Closed> {
  connected?: boolean;
}

/** The other reasons need a decision of the user. */
const RETRIED = ["Lost", "LoginPending", "Unreachable", "ApiServer", "Busy", "Ended", "NotRunning"];
/** A login of the guest's desktop takes some seconds, so longer delays would only be felt. */
const LOGIN_PENDING_RETRY_MS = 2_000;
const CONNECT_TIMEOUT_MS = 30_000;

export function openDevice<Code, Client>(vm: string, device: Device<Code, Client>): Connection<Client> {
  const state = signal<ConnectionState<Client>>({ is: "connecting" });
  let socket: WebSocket | null = null;
  let transfer: Transfer | null = null;
  let timer: number | undefined;
  let tries = 0;
  /** Differs per attempt, so that an earlier attempt cannot continue. */
  let attempt = {};

  function drop() {
    attempt = {};
    clearTimeout(timer);
    const [droppedSocket, droppedTransfer] = [socket, transfer];
    socket = transfer = null;
    droppedTransfer?.close();
    droppedSocket?.close();
  }

  async function connect(takeOver = false) {
    drop();
    const own = attempt;
    let code: Code;
    try {
      code = await device.load();
    } catch {
      if (own === attempt) end({ reason: "Lost" });
      return;
    }
    // The code must be loaded before the socket opens, since bytes of the device follow the first message at once.
    if (own === attempt) openSocket(code, takeOver);
  }

  function openSocket(code: Code, takeOver: boolean) {
    const own = new WebSocket(webSocketUrl(`vms/${encodeURIComponent(vm)}/${device.path}${takeOver ? "?takeOver=true" : ""}`));
    own.binaryType = "arraybuffer";
    socket = own;
    timer = setTimeout(() => own === socket && end({ reason: "Lost" }), CONNECT_TIMEOUT_MS);
    const ready = (client: Client) => {
      if (own !== socket) return;
      clearTimeout(timer);
      tries = 0;
      state.value = { is: "connected", client };
    };
    own.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (own !== socket) return;
      if (typeof data !== "string") return transfer?.receive(data);
      const message = parse(data);
      if (message.connected) transfer ??= device.start(code, own, ready, (reason) => own === socket && end({ reason }));
      else end({ ...message, reason: message.reason ?? "Lost" });
    };
    own.onclose = ({ code }) => {
      if (own !== socket) return;
      end({ reason: "Lost" });
      if (code === CLOSE_CODE_LOGIN_ENDED) device.forget();
    };
  }

  function end(closed: Closed) {
    drop();
    tries += 1;
    const isRetried = RETRIED.includes(closed.reason);
    if (!isRetried) device.forget();
    state.value = { is: "closed", isRetried, tries, ...closed };
    if (isRetried) timer = setTimeout(connect, closed.reason === "LoginPending" ? LOGIN_PENDING_RETRY_MS : retryDelay(tries));
    if (closed.reason === "Lost") void checkSession(attempt);
  }

  /** The page cannot see why a handshake failed, and another tab may have begun the next login. */
  async function checkSession(own: object) {
    const answer = await getSession();
    if (own === attempt && loggedIn.value && !answer.ok && answer.error.status === 401) endLogin();
  }

  function connectNow() {
    const now = state.peek();
    if (now.is === "closed" && now.isRetried) void connect();
  }
  const goOffline = () => state.peek().is === "connected" && end({ reason: "Lost" });
  const becomeVisible = () => document.hidden || connectNow();

  function disconnect() {
    drop();
    tries = 0;
    state.value = { is: "connecting" };
  }

  const stopReports = inputReports.subscribe(() => reportInputTo(socket));
  addEventListener("online", connectNow);
  addEventListener("offline", goOffline);
  document.addEventListener("visibilitychange", becomeVisible);
  return {
    state,
    connect(takeOver) {
      tries = 0;
      void connect(takeOver);
      state.value = { is: "connecting" };
    },
    disconnect,
    dispose() {
      disconnect();
      stopReports();
      removeEventListener("online", connectNow);
      removeEventListener("offline", goOffline);
      document.removeEventListener("visibilitychange", becomeVisible);
    },
  };
}

function parse(text: string): Message {
  try {
    return JSON.parse(text) as Message;
  } catch {
    return {};
  }
}
