/** The connection that delivers the list and its changes. */

import { effect, signal } from "@preact/signals";
import { getSession, postActive, type PoolRow, type Row } from "./api";
import { changeRows, clearRows, endLogin, loadSession, loggedIn, phase, replacePools, replaceRows } from "./state";

interface Message {
  user?: string;
  rows?: Row[];
  gone?: string[];
  /** All pools that the user may use. */
  pools?: PoolRow[];
  /** Seconds since the server has received news of the API server, if the list is old; 0 if it is not old any more. */
  age?: number;
}

/** `since` is null if no list was received yet. `tries` counts the failures since the last message. */
export type Connection = { is: "connecting" } | { is: "live" } | { is: "lost"; since: Date | null; tries: number };

export const connection = signal<Connection>({ is: "connecting" });

/** The time of the list, while it is old because the server receives nothing from the API server. */
export const oldSince = signal<Date | null>(null);

export const CLOSE_CODE_LOGIN_ENDED = 4401;
const BACKOFF_SECONDS = [1, 2, 4, 8, 15];
const FIRST_MESSAGE_TIMEOUT_MS = 20_000;
const ACTIVE_INTERVAL_MS = 5 * 60_000;

/** Number of tries after which the page offers a button to connect. */
export const TRIES_BEFORE_BUTTON = BACKOFF_SECONDS.length;

export const webSocketUrl = (path: string) =>
  `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}/api/v1/${path}`;

/** Delay before the next try, in milliseconds. `tries` begins with 1. */
export function retryDelay(tries: number): number {
  const seconds = BACKOFF_SECONDS[Math.min(tries, BACKOFF_SECONDS.length) - 1] ?? 15;
  return seconds * 1000 * (0.8 + 0.4 * Math.random());
}

let socket: WebSocket | null = null;
let timer: number | undefined;

/** Drops the socket without its close event: a socket without network reports its end minutes later. */
function dropSocket() {
  clearTimeout(timer);
  const dropped = socket;
  socket = null;
  dropped?.close();
}

function connect() {
  dropSocket();
  const own = new WebSocket(webSocketUrl("live"));
  socket = own;
  let hasList = false;
  timer = setTimeout(() => own === socket && reconnect(false), FIRST_MESSAGE_TIMEOUT_MS);
  own.onmessage = (event) => {
    if (own !== socket) return;
    let message: Message;
    try {
      message = JSON.parse(String(event.data)) as Message;
    } catch {
      return void reconnect(hasList);
    }
    clearTimeout(timer);
    if (message.user !== undefined || message.age !== undefined) {
      oldSince.value = message.age ? new Date(Date.now() - message.age * 1000) : null;
    }
    if (message.user === undefined) {
      if (message.pools) replacePools(message.pools);
      return changeRows(message.rows ?? [], message.gone ?? []);
    }
    const hadList = hasList;
    hasList = true;
    if (phase.value.is === "loggedIn" && phase.value.session.user !== message.user) {
      clearRows();
      void loadSession();
    }
    // The configuration may have changed, and with it the pages that the roles permit.
    else if (hadList) void loadSession();
    if (message.pools || !hadList) replacePools(message.pools ?? []);
    replaceRows(message.rows ?? []);
    connection.value = { is: "live" };
  };
  own.onclose = (event) => {
    if (own !== socket) return;
    // After the end of a login, another tab of the browser may have begun the next one.
    void reconnect(hasList && event.code !== CLOSE_CODE_LOGIN_ENDED);
  };
}

async function reconnect(hadList: boolean) {
  dropSocket();
  const was = connection.value;
  const tries = was.is === "lost" ? was.tries + 1 : 1;
  const since = was.is === "live" ? new Date() : was.is === "lost" ? was.since : null;
  const lost: Connection = { is: "lost", since, tries };
  connection.value = lost;
  // The page cannot see why a handshake failed, so it asks for the session.
  if (!hadList) {
    const answer = await getSession();
    if (connection.value !== lost || socket || !loggedIn.value) return;
    if (!answer.ok && answer.error.status === 401) return endLogin();
  }
  timer = setTimeout(connect, retryDelay(tries));
}

export function connectNow() {
  if (connection.value.is === "lost") connect();
}

let hasInput = false;

/** Number of reports of the user's input. The server of each connection gets them, because it can be another one. */
export const inputReports = signal(0);

export function reportInputTo(socket: WebSocket | null) {
  if (socket?.readyState === WebSocket.OPEN) socket.send("active");
}

/** Connects while a user is logged in, and reports the user's input to the server. */
export function startLive() {
  for (const name of ["keydown", "pointerdown", "pointermove", "wheel"]) {
    // In the capture phase, since noVNC stops the events of the screen.
    addEventListener(name, (event) => (hasInput ||= event.isTrusted), { passive: true, capture: true });
  }
  addEventListener("online", connectNow);
  addEventListener("offline", () => connection.value.is === "live" && void reconnect(true));
  document.addEventListener("visibilitychange", () => document.hidden || connectNow());
  effect(() => {
    if (!loggedIn.value) return;
    hasInput = false;
    connection.value = { is: "connecting" };
    connect();
    const reports = setInterval(reportInput, ACTIVE_INTERVAL_MS);
    return () => {
      clearInterval(reports);
      dropSocket();
    };
  });
}

async function reportInput() {
  if (!hasInput) return;
  hasInput = false;
  const login = phase.value;
  const answer = await postActive();
  if (answer.ok) {
    reportInputTo(socket);
    inputReports.value += 1;
    return;
  }
  if (phase.value !== login) return;
  if (answer.error.status === 401) endLogin();
  else hasInput = true;
}
