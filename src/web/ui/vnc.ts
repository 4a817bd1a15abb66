/** The connection to the screen of a VM: the bytes of RFB (VNC). */

import type RFB from "@novnc/novnc";
import type { Channel } from "@novnc/novnc";
import { batch, signal, type ReadonlySignal } from "@preact/signals";
import { openDevice, type Connection, type ConnectionState } from "./connection";

export type ScreenState = ConnectionState<RFB>;

export interface ScreenConnection extends Connection<RFB> {
  /** The last picture of a closed connection. */
  lastPicture: ReadonlySignal<HTMLCanvasElement | null>;
}

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
  const lastPicture = signal<HTMLCanvasElement | null>(null);
  const forget = () => void (lastPicture.value = null);
  const connection = openDevice<typeof RFB, RFB>(vm, {
    path: "screen",
    load: async () => (await import("@novnc/novnc")).default,
    start(Client, socket, ready, end) {
      const channel = new BinaryChannel(socket);
      const client = new Client(target, channel, { shared: true });
      let hasPicture = false;
      client.addEventListener("connect", () => {
        hasPicture = true;
        batch(() => {
          forget();
          ready(client);
        });
      });
      client.addEventListener("disconnect", () => end("Ended"));
      client.addEventListener("credentialsrequired", () => end("Unsupported"));
      return {
        receive: (data) => channel.onmessage?.({ data }),
        close() {
          if (hasPicture) lastPicture.value = copyPicture(target);
          client.disconnect();
        },
      };
    },
    forget,
  });
  return {
    ...connection,
    lastPicture,
    disconnect() {
      batch(() => {
        connection.disconnect();
        forget();
      });
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
