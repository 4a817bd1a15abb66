/** The connection to the serial line of a VM: the bytes of both directions. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { openDevice, type Connection } from "./connection";
import type { GuestTerminal } from "./terminal";

export interface SerialConnection extends Connection<GuestTerminal> {
  /** Retains the output of a closed connection. */
  terminal: ReadonlySignal<GuestTerminal | null>;
  hasOutput: ReadonlySignal<boolean>;
  /** Deletes the output. */
  forget(): void;
}

/** The escape sequence that resets the terminal. In the stream, it also has effect on output that is not parsed yet. */
const RESET = "\x1bc";
/** A hidden page parses slowly. The server repeats the last output after a new connection. */
const UNPARSED_BYTES_MAX = 8 << 20;

export function openSerial(vm: string, create: (code: typeof import("./terminal")) => GuestTerminal): SerialConnection {
  const terminal = signal<GuestTerminal | null>(null);
  const hasOutput = signal(false);
  const encoder = new TextEncoder();
  function forget() {
    terminal.value?.xterm.write(RESET);
    hasOutput.value = false;
  }
  const connection = openDevice<typeof import("./terminal"), GuestTerminal>(vm, {
    path: "serial",
    load: () => import("./terminal"),
    start(code, socket, ready, end) {
      const client = (terminal.value ??= create(code));
      const { xterm } = client;
      forget();
      let replay: "expected" | "parsed" | "ended" = "expected";
      let unparsedBytes = 0;
      // The guest has asked the questions of the replay earlier, so answers would be input that it does not expect.
      const send = (data: Uint8Array<ArrayBuffer>) => {
        if (replay !== "parsed" && socket.readyState === WebSocket.OPEN) socket.send(data);
      };
      const listeners = [
        xterm.onData((text) => send(encoder.encode(text))),
        xterm.onBinary((bytes) => send(Uint8Array.from(bytes, (byte) => byte.charCodeAt(0)))),
      ];
      xterm.options.disableStdin = false;
      ready(client);
      return {
        receive(data) {
          if (replay === "expected") replay = "parsed";
          unparsedBytes += data.byteLength;
          if (unparsedBytes > UNPARSED_BYTES_MAX) return end("Lost");
          if (data.byteLength > 0) hasOutput.value = true;
          xterm.write(new Uint8Array(data), () => {
            replay = "ended";
            unparsedBytes -= data.byteLength;
          });
        },
        close() {
          xterm.options.disableStdin = true;
          for (const listener of listeners) listener.dispose();
        },
      };
    },
    forget,
  });
  return {
    ...connection,
    terminal,
    hasOutput,
    forget,
    dispose() {
      connection.dispose();
      terminal.value?.dispose();
    },
  };
}
