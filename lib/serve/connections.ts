// The open connections of a server, and which of them have a request under way.
import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** Node itself counts a connection that never asked for anything as one in use. */
export class Connections {
  /** What is under way on each. */
  private readonly open = new Map<Socket, Set<ServerResponse>>();
  private isClosing = false;

  constructor(server: Server) {
    server.on('connection', (socket: Socket) => {
      this.open.set(socket, new Set());
      socket.setMaxListeners(0); // One for each request that waits on it.
      socket.once('close', () => this.open.delete(socket));
    });
  }

  /** How many there are. */
  get count(): number {
    return this.open.size;
  }

  /** A request has come, which `response` will answer. */
  began(response: ServerResponse): void {
    const { socket } = response.req;
    const under = this.open.get(socket);
    if (!under) return;
    under.add(response);
    response.once('close', () => {
      under.delete(response);
      if (this.isClosing && under.size === 0) socket.destroySoon();
    });
  }

  /** Whether what is written to it now would be taken for an answer, or for a part of one. */
  isAnswering(socket: Socket): boolean {
    const under = [...(this.open.get(socket) ?? [])];
    return under.some(({ headersSent, req }) => headersSent || req.complete);
  }

  /** Closes each when nothing is under way on it. */
  close(): void {
    this.isClosing = true;
    for (const [socket, { size }] of this.open) if (size === 0) socket.destroySoon();
  }

  /** Closes all at once. */
  destroy(): void {
    for (const socket of this.open.keys()) socket.destroy();
  }
}
