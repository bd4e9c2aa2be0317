// Tests which connection a full server closes for a new one.
import { EventEmitter } from 'node:events';
import type { Server, ServerResponse } from 'node:http';
import { Connections } from '../../lib/serve/connections.js';

class FakeSocket extends EventEmitter {
  readonly ends: string[] = [];
  end(): void {
    this.ends.push('half-closed');
  }
  resume(): void {
    this.ends.push('resumed');
  }
  destroy(): void {
    this.ends.push('destroyed');
    this.emit('close');
  }
  destroySoon(): void {
    this.ends.push('ended');
  }
}

function connectSockets(count: number, limit: number) {
  const server = new EventEmitter();
  const connections = new Connections(server as unknown as Server, limit);
  const connect = (): FakeSocket => {
    const socket = new FakeSocket();
    server.emit('connection', socket);
    return socket;
  };
  /** Begins a request; returns its response. */
  const begin = (socket: FakeSocket): EventEmitter => {
    const response = Object.assign(new EventEmitter(), { req: { socket } });
    connections.add(response as unknown as ServerResponse);
    return response;
  };
  const sockets = Array.from({ length: count }, connect) as [FakeSocket, FakeSocket];
  return { connections, connect, begin, sockets };
}

test('the oldest connection without a request is closed for a new one', () => {
  const { connections, connect, begin, sockets } = connectSockets(2, 2);
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
  const { connections, connect, sockets } = connectSockets(2, 2);
  const [first, second] = sockets;
  connections.trust(first as never);
  connect();
  expect([first.ends, second.ends]).toEqual([[], ['destroyed']]);
});

test('a new connection is refused if all have a request', () => {
  const { connections, connect, begin, sockets } = connectSockets(2, 2);
  sockets.forEach(begin);
  expect(connect().ends).toEqual(['destroyed']);
  expect(sockets.map(({ ends }) => ends)).toEqual([[], []]);
  expect(connections.count).toBe(2);
});

describe('a connection that is closed after its answer', () => {
  beforeEach(() => {
    jest.useFakeTimers();
  });
  afterEach(() => jest.useRealTimers());

  function refuseConnection(headersSent = false) {
    const { connections, sockets } = connectSockets(1, 1);
    const headers: [string, string][] = [];
    const response = {
      req: { socket: sockets[0] },
      headersSent,
      setHeader: (...header: [string, string]) => headers.push(header),
    };
    connections.closeAfter(response as unknown as ServerResponse);
    return { connections, socket: sockets[0], headers };
  }

  test('has a second for its last bytes', () => {
    const { connections, socket, headers } = refuseConnection();
    expect(headers).toEqual([['connection', 'close']]);
    expect(connections.isClosing(socket as never)).toBe(false);
    socket.destroySoon(); // By Node, after the answer.
    socket.destroySoon();
    expect(socket.ends).toEqual(['half-closed', 'resumed']);
    expect(connections.isClosing(socket as never)).toBe(true);
    jest.advanceTimersByTime(999);
    expect(socket.ends).toHaveLength(2);
    jest.advanceTimersByTime(1);
    expect(socket.ends.at(-1)).toBe('destroyed');
    expect([jest.getTimerCount(), connections.count]).toEqual([0, 0]);
  });

  test('leaves no timer when its client closes it', () => {
    const { connections, socket } = refuseConnection();
    socket.destroySoon();
    expect(jest.getTimerCount()).toBe(1);
    socket.emit('close');
    expect([jest.getTimerCount(), connections.count]).toEqual([0, 0]);
  });

  test('stays as it is if the answer has begun', () => {
    const { socket, headers } = refuseConnection(true);
    socket.destroySoon();
    expect([headers, socket.ends]).toEqual([[], ['ended']]);
  });
});

test('connections at their end close after their last answer, idle ones at once', () => {
  const { connections, connect, begin } = connectSockets(0, 3);
  const [idle, one, two] = [connect(), connect(), connect()];
  const first = begin(one);
  const [second, third] = [begin(two), begin(two)];
  first.emit('close');
  expect(one.ends).toEqual([]);
  begin(one);
  connections.close();
  expect([idle.ends, one.ends, two.ends]).toEqual([['ended'], [], []]);
  second.emit('close');
  expect(two.ends).toEqual([]);
  third.emit('close');
  expect(two.ends).toEqual(['ended']);
  connections.destroy();
  expect(one.ends).toEqual(['destroyed']);
});

test('an answer that is cut off closes its connection, a complete one does not', () => {
  const { connections, connect } = connectSockets(0, 2);
  const socket = connect() as never;
  const state = () => [connections.isAnswering(socket), connections.hasEnded(socket)];
  expect(state()).toEqual([false, true]);
  const req = { socket, complete: false };
  const response = Object.assign(new EventEmitter(), {
    req,
    headersSent: false,
    writableEnded: false,
  });
  connections.add(response as never);
  expect(state()).toEqual([false, false]);
  req.complete = true;
  expect(state()).toEqual([true, false]);
  Object.assign(req, { complete: false });
  Object.assign(response, { headersSent: true, writableEnded: true });
  expect(state()).toEqual([true, true]);
  // A connection that is not in the list has no answers.
  const foreign = new FakeSocket() as never;
  connections.add(Object.assign(new EventEmitter(), { req: { socket: foreign } }) as never);
  expect([connections.isAnswering(foreign), connections.hasEnded(foreign)]).toEqual([false, true]);
});
