// Schedules prompts on the tokenizer threads: round robin over clients, then over the connections
// of a client.

/** Identifies the client that sent a prompt. */
export interface QueueClient {
  /** Identifies the client: equal for all its connections. */
  readonly client: string;
  readonly connection: object;
  /** Aborted when the request ends. */
  readonly signal: AbortSignal;
}

interface Waiter {
  readonly isLong: boolean;
  start(): void;
}

/** Waiting prompts by connection. The first connection has the client's next turn. */
type Connections = Map<object, Waiter[]>;

/**
 * Runs at most `slots` prompts at a time. If there are several slots, long prompts leave one to
 * short prompts.
 */
export class FairQueue {
  private readonly clients = new Map<string, Connections>();
  private readonly maxLong: number;
  private running = 0;
  private long = 0;

  constructor(private readonly slots: number) {
    this.maxLong = Math.max(1, slots - 1);
  }

  /**
   * Waits for a slot. Resolves with the function that frees it. Rejects with the reason of the
   * client's signal.
   */
  enter({ client, connection, signal }: QueueClient, isLong: boolean): Promise<() => void> {
    signal.throwIfAborted();
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        this.remove(client, connection, waiter);
        reject(signal.reason);
      };
      const waiter: Waiter = {
        isLong,
        start: () => {
          signal.removeEventListener('abort', leave);
          resolve(this.start(isLong));
        },
      };
      signal.addEventListener('abort', leave, { once: true });
      const connections = this.clients.get(client) ?? new Map<object, Waiter[]>();
      this.clients.set(client, connections);
      const waiters = connections.get(connection) ?? [];
      connections.set(connection, waiters);
      waiters.push(waiter);
      this.startNext();
    });
  }

  private start(isLong: boolean): () => void {
    this.running++;
    if (isLong) this.long++;
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      this.running--;
      if (isLong) this.long--;
      this.startNext();
    };
  }

  private startNext(): void {
    while (this.running < this.slots) {
      const next = this.takeNext();
      if (!next) return;
      next.start();
    }
  }

  /**
   * Removes and returns the next waiter. Moves its connection and its client to the end of the
   * round.
   */
  private takeNext(): Waiter | null {
    for (const [client, connections] of this.clients) {
      for (const [connection, waiters] of connections) {
        const waiter = waiters.find(({ isLong }) => !isLong || this.long < this.maxLong);
        if (!waiter) continue;
        this.remove(client, connection, waiter);
        moveToEnd(connections, connection);
        moveToEnd(this.clients, client);
        return waiter;
      }
    }
    return null;
  }

  private remove(client: string, connection: object, waiter: Waiter): void {
    const connections = this.clients.get(client);
    const waiters = connections?.get(connection) ?? [];
    const at = waiters.indexOf(waiter);
    if (at >= 0) waiters.splice(at, 1);
    if (waiters.length === 0) connections?.delete(connection);
    if (connections?.size === 0) this.clients.delete(client);
  }
}

function moveToEnd<Key, Value>(map: Map<Key, Value>, key: Key): void {
  const value = map.get(key);
  if (value === undefined) return;
  map.delete(key);
  map.set(key, value);
}
