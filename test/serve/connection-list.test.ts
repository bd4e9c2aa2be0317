// Tests which connection a full server closes for a new one.
import { EventEmitter } from 'node:events';
import type { Server, ServerResponse } from 'node:http';
import { Connections } from '../../lib/serve/connections.js';

class FakeSocket extends EventEmitter {
  readonly ends: string[] = [];
  destroy(): void {
    this.ends.push('destroyed');
    this.emit('close');
  }
  destroySoon(): void {
    this.ends.push('ended');
  }
}

function connected(count: number, most: number) {
  const server = new EventEmitter();
  const connections = new Connections(server as unknown as Server, most);
  const connect = (): FakeSocket => {
    const socket = new FakeSocket();
    server.emit('connection', socket);
    return socket;
  };
  /** Begins a request; returns its response. */
  const begin = (socket: FakeSocket): EventEmitter => {
    const response = Object.assign(new EventEmitter(), { req: { socket } });
    connections.began(response as unknown as ServerResponse);
    return response;
  };
  const sockets = Array.from({ length: count }, connect) as [FakeSocket, FakeSocket];
  return { connections, connect, begin, sockets };
}

test('the oldest connection without a request is closed for a new one', () => {
  const { connections, connect, begin, sockets } = connected(2, 2);
  const [first, second] = sockets;
  const response = begin(first);
  connect();
  expect([first.ends, second.ends]).toEqual([[], ['destroyed']]);
  // Its request has ended, so the connection is idle again.
  response.emit('close');
  connect();
  expect(first.ends).toEqual(['destroyed']);
  expect(connections.count).toBe(2);
});

test('a trusted connection is closed only if no other is idle', () => {
  const { connections, connect, sockets } = connected(2, 2);
  const [first, second] = sockets;
  connections.trust(first as never);
  connect();
  expect([first.ends, second.ends]).toEqual([[], ['destroyed']]);
});

test('a new connection is refused if all have a request', () => {
  const { connections, connect, begin, sockets } = connected(2, 2);
  sockets.forEach(begin);
  expect(connect().ends).toEqual(['destroyed']);
  expect(sockets.map(({ ends }) => ends)).toEqual([[], []]);
  expect(connections.count).toBe(2);
});
