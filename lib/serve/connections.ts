// The open connections of a server, and which of them have a request under way.
import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/** Node itself counts a connection that never asked for anything as one in use. */
export class Connections {
  /** Requests under way of each. */
  private readonly open = new Map<Socket, number>();
  private isClosing = false;

  constructor(server: Server) {
    server.on('connection', (socket: Socket) => {
      this.open.set(socket, 0);
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
    const before = this.open.get(socket);
    if (before === undefined) return;
    this.open.set(socket, before + 1);
    response.once('close', () => {
      const left = (this.open.get(socket) ?? 1) - 1;
      if (this.open.has(socket)) this.open.set(socket, left);
      if (this.isClosing && left === 0) socket.destroySoon();
    });
  }

  /** Closes each when nothing is under way on it. */
  close(): void {
    this.isClosing = true;
    for (const [socket, requests] of this.open) if (requests === 0) socket.destroySoon();
  }

  /** Closes all at once. */
  destroy(): void {
    for (const socket of this.open.keys()) socket.destroy();
  }
}
