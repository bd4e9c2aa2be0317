// Tracks open connections and their requests.
import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** Milliseconds that a refused client has to read its answer. */
const LINGER_MS = 1000;

/** Tracks connections itself: Node counts a connection without any request as busy. */
export class Connections {
  /** Running responses by connection. */
  private readonly open = new Map<Socket, Set<ServerResponse>>();
  /** Connections that have sent a valid key and host. */
  private readonly trusted = new WeakSet<Socket>();
  private readonly closing = new WeakSet<Socket>();
  private isEnding = false;

  /** `max`: maximum number of connections. */
  constructor(server: Server, max: number) {
    server.on('connection', (socket: Socket) => {
      if (this.open.size >= max && !this.makeRoom()) {
        socket.destroy();
        return;
      }
      this.open.set(socket, new Set());
      socket.setMaxListeners(0); // Each request that waits on the socket adds a listener.
      socket.once('close', () => this.open.delete(socket));
    });
  }

  /** Number of open connections. */
  get count(): number {
    return this.open.size;
  }

  /** Registers a request and its response. */
  add(response: ServerResponse): void {
    const { socket } = response.req;
    const under = this.open.get(socket);
    if (!under) return;
    under.add(response);
    response.once('close', () => {
      under.delete(response);
      if (this.isEnding && under.size === 0) socket.destroySoon();
    });
  }

  /** Marks a connection that has sent a valid key and host. */
  trust(socket: Socket): void {
    this.trusted.add(socket);
  }

  /**
   * Closes the oldest connection without a running request, untrusted connections first. Returns
   * false if all connections have a request.
   */
  makeRoom(): boolean {
    const idle = Array.from(this.open).filter(([, { size }]) => size === 0);
    const victim = idle.find(([socket]) => !this.trusted.has(socket)) ?? idle[0];
    if (!victim) return false;
    const [socket] = victim;
    this.open.delete(socket);
    socket.destroy();
    return true;
  }

  /** Closes the connection after this response. The response must not have started. */
  closeAfter(response: ServerResponse): void {
    const { socket } = response.req;
    if (response.headersSent) return;
    response.setHeader('connection', 'close');
    socket.destroySoon = () => this.linger(socket);
  }

  /** Returns whether linger() was called: the server ignores further requests on the connection. */
  isClosing(socket: Socket): boolean {
    return this.closing.has(socket);
  }

  /** Returns whether the client would read written bytes as part of an answer. */
  isAnswering(socket: Socket): boolean {
    const under = [...(this.open.get(socket) ?? [])];
    return under.some(({ headersSent, req }) => headersSent || req.complete);
  }

  /**
   * Returns whether all answers of the connection are complete; their last bytes may still be in
   * transfer.
   */
  hasEnded(socket: Socket): boolean {
    return [...(this.open.get(socket) ?? [])].every(({ writableEnded }) => writableEnded);
  }

  /**
   * Ends the server's side after the last written byte, and closes the connection LINGER_MS later.
   * Until then it drops the client's bytes: an earlier close would discard the answer.
   */
  linger(socket: Socket): void {
    if (this.closing.has(socket)) return;
    this.closing.add(socket);
    socket.end();
    socket.resume();
    const timer = setTimeout(() => socket.destroy(), LINGER_MS).unref();
    socket.once('close', () => clearTimeout(timer));
  }

  /** Closes each connection after its last answer. */
  close(): void {
    this.isEnding = true;
    for (const [socket, { size }] of this.open) if (size === 0) socket.destroySoon();
  }

  /** Closes all connections at once. */
  destroy(): void {
    for (const socket of this.open.keys()) socket.destroy();
  }
}
