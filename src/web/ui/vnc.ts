/** The connection to the screen of a VM: a WebSocket with JSON texts, and with the bytes of RFB (VNC) as binary messages. */

import type RFB from "@novnc/novnc";
import type { Channel } from "@novnc/novnc";
import { batch, signal, type ReadonlySignal } from "@preact/signals";
import { getSession } from "./api";
import { CLOSE_CODE_LOGIN_ENDED, retryDelay, webSocketUrl } from "./live";
import { endLogin, loggedIn } from "./state";

/** `reason` is a reason of the server, or `Lost` if the connection was closed without a reason. */
export interface Closed {
  reason: string;
  user?: string;
  mayTake?: boolean;
}

/** `tries` counts the failures since the last picture. */
export type ScreenState =
  | { is: "connecting" }
  | { is: "connected"; rfb: RFB }
  | ({ is: "closed"; isRetried: boolean; tries: number } & Closed);

export interface ScreenConnection {
  state: ReadonlySignal<ScreenState>;
  /** The last picture of a closed connection. */
  lastPicture: ReadonlySignal<HTMLCanvasElement | null>;
  connect(takeOver?: boolean): void;
  /** Closes the connection and deletes the last picture. */
  disconnect(): void;
  /** Disconnects and removes all listeners. */
  dispose(): void;
}

interface Message extends Partial<Closed> {
  connected?: boolean;
}

/** The other reasons need a decision of the user. */
const RETRIED = ["Lost", "LoginPending", "Unreachable", "ApiServer", "Busy", "Ended", "NotRunning"];
/** A login of the guest's desktop takes some seconds, so longer delays would only be felt. */
const LOGIN_PENDING_RETRY_MS = 2_000;
const CONNECT_TIMEOUT_MS = 30_000;

/** Passes binary messages only. The socket is open already. */
class BinaryChannel implements Channel {
  binaryType = "arraybuffer";
  protocol = "";
  readyState: number = WebSocket.OPEN;
  onopen: Channel["onopen"] = null;
  onmessage: Channel["onmessage"] = null;
  onclose: Channel["onclose"] = null;
  onerror: Channel["onerror"] = null;
  socket: WebSocket;

  constructor(socket: WebSocket) {
    this.socket = socket;
  }

  send(data: Uint8Array<ArrayBuffer>) {
    this.socket.send(data);
  }

  /** noVNC expects the event after the call. The socket's own event can be minutes late without a network. */
  close() {
    this.readyState = WebSocket.CLOSED;
    this.socket.close();
    queueMicrotask(() => this.onclose?.({}));
  }
}

export function openScreen(vm: string, target: HTMLElement): ScreenConnection {
  const state = signal<ScreenState>({ is: "connecting" });
  const lastPicture = signal<HTMLCanvasElement | null>(null);
  let socket: WebSocket | null = null;
  let rfb: RFB | null = null;
  let timer: number | undefined;
  let tries = 0;
  /** Differs per attempt, so that an earlier attempt cannot continue. */
  let attempt = {};

  function drop() {
    attempt = {};
    clearTimeout(timer);
    const [droppedSocket, droppedRfb] = [socket, rfb];
    socket = rfb = null;
    if (droppedRfb && state.peek().is === "connected") lastPicture.value = copyPicture(target);
    droppedRfb?.disconnect();
    droppedSocket?.close();
  }

  async function connect(takeOver = false) {
    drop();
    const own = attempt;
    let Client: typeof RFB;
    try {
      Client = (await import("@novnc/novnc")).default;
    } catch {
      if (own === attempt) end({ reason: "Lost" });
      return;
    }
    // noVNC must be loaded before the socket opens, since bytes of RFB follow the first message at once.
    if (own === attempt) openSocket(Client, takeOver);
  }

  function openSocket(Client: typeof RFB, takeOver: boolean) {
    const own = new WebSocket(webSocketUrl(`vms/${encodeURIComponent(vm)}/screen${takeOver ? "?takeOver=true" : ""}`));
    own.binaryType = "arraybuffer";
    socket = own;
    const channel = new BinaryChannel(own);
    timer = setTimeout(() => own === socket && end({ reason: "Lost" }), CONNECT_TIMEOUT_MS);
    own.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (own !== socket) return;
      if (typeof data !== "string") return channel.onmessage?.({ data });
      const message = parse(data);
      if (message.connected) rfb ??= createClient(Client, channel);
      else end({ ...message, reason: message.reason ?? "Lost" });
    };
    own.onclose = ({ code }) => {
      if (own !== socket) return;
      end({ reason: "Lost" });
      if (code === CLOSE_CODE_LOGIN_ENDED) lastPicture.value = null;
    };
  }

  function createClient(Client: typeof RFB, channel: Channel): RFB {
    const client = new Client(target, channel, { shared: true });
    client.addEventListener("connect", () => {
      if (client !== rfb) return;
      clearTimeout(timer);
      tries = 0;
      batch(() => {
        lastPicture.value = null;
        state.value = { is: "connected", rfb: client };
      });
    });
    client.addEventListener("disconnect", () => client === rfb && end({ reason: "Ended" }));
    client.addEventListener("credentialsrequired", () => client === rfb && end({ reason: "Unsupported" }));
    return client;
  }

  function end(closed: Closed) {
    drop();
    tries += 1;
    const isRetried = RETRIED.includes(closed.reason);
    if (!isRetried) lastPicture.value = null;
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
    batch(() => {
      lastPicture.value = null;
      state.value = { is: "connecting" };
    });
  }

  addEventListener("online", connectNow);
  addEventListener("offline", goOffline);
  document.addEventListener("visibilitychange", becomeVisible);
  return {
    state,
    lastPicture,
    connect(takeOver) {
      tries = 0;
      void connect(takeOver);
      state.value = { is: "connecting" };
    },
    disconnect,
    dispose() {
      disconnect();
      removeEventListener("online", connectNow);
      removeEventListener("offline", goOffline);
      document.removeEventListener("visibilitychange", becomeVisible);
    },
  };
}

/** noVNC removes its canvas at the end of a connection. */
function copyPicture(target: HTMLElement): HTMLCanvasElement | null {
  const picture = target.querySelector("canvas");
  if (!picture?.width || !picture.height) return null;
  const copy = document.createElement("canvas");
  copy.width = picture.width;
  copy.height = picture.height;
  copy.getContext("2d")?.drawImage(picture, 0, 0);
  return copy;
}

function parse(text: string): Message {
  try {
    return JSON.parse(text) as Message;
  } catch {
    return {};
  }
}
