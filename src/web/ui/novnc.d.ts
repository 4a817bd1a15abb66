/** The part of noVNC's interface that the page uses. The package has no types. */
declare module "@novnc/novnc" {
  /** The part of a WebSocket that noVNC needs. */
  export interface Channel {
    binaryType: string;
    protocol: string;
    readyState: number;
    onopen: (() => void) | null;
    onmessage: ((event: { data: ArrayBuffer }) => void) | null;
    onclose: ((event: { code?: number }) => void) | null;
    onerror: (() => void) | null;
    send(data: Uint8Array<ArrayBuffer>): void;
    close(): void;
  }

  export default class RFB {
    constructor(target: HTMLElement, channel: Channel, options?: { shared?: boolean });
    background: string;
    clipViewport: boolean;
    readonly clippingViewport: boolean;
    dragViewport: boolean;
    focusOnClick: boolean;
    resizeSession: boolean;
    scaleViewport: boolean;
    addEventListener(name: string, listener: () => void): void;
    disconnect(): void;
    focus(options?: FocusOptions): void;
    sendKey(keysym: number, code: string | null, down?: boolean): void;
    toBlob(callback: (blob: Blob | null) => void, type?: string): void;
  }
}
