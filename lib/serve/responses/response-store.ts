// Stores responses and their items for later requests of the same client, within limits.
import type { JsonObject } from '../../../types/json.js';
import { ApiError } from '../api-error.js';

/** A response with the items of its turn. */
interface StoredResponse {
  id: string;
  /** The client. Other clients cannot read the response. */
  owner: string;
  /** Id of the previous response in the conversation. */
  previous: string | null;
  /** Items of the request, then items of the answer. */
  items: readonly JsonObject[];
  /** The response as sent to the client. */
  response: JsonObject;
}

/** Maximum number of stored responses, and of their bytes. */
const [MAX_RESPONSES, MAX_BYTES] = [4096, 64 * 2 ** 20];

/** Stores responses by id. Drops the least recently used first. */
export class ResponseStore {
  private readonly responses = new Map<string, StoredResponse & { bytes: number }>();
  private readonly items = new Map<string, { response: string; item: JsonObject }>();
  private bytes = 0;

  constructor(
    private readonly max = MAX_RESPONSES,
    private readonly maxBytes = MAX_BYTES,
  ) {}

  add(stored: StoredResponse): void {
    const bytes = Buffer.byteLength(JSON.stringify([stored.items, stored.response]));
    if (bytes > this.maxBytes) return;
    this.responses.set(stored.id, { ...stored, bytes });
    this.bytes += bytes;
    for (const item of stored.items) {
      if (typeof item.id === 'string') this.items.set(item.id, { response: stored.id, item });
    }
    while (this.responses.size > this.max || this.bytes > this.maxBytes) {
      const [oldest] = this.responses.keys();
      if (oldest === undefined) return;
      this.drop(oldest);
    }
  }

  /** Returns a response. Throws 404 for an unknown id, and for a response of another client. */
  find(id: string, owner: string): StoredResponse {
    const stored = this.responses.get(id);
    if (!stored || stored.owner !== owner) throw notFoundError(id);
    this.responses.delete(id);
    this.responses.set(id, stored);
    return stored;
  }

  /** Deletes a response. Throws as find() does. */
  delete(id: string, owner: string): void {
    this.find(id, owner);
    this.drop(id);
  }

  /**
   * Returns all items of a conversation up to the response `id`, oldest first. Throws as find()
   * does.
   */
  conversation(id: string, owner: string): JsonObject[] {
    const turns: (readonly JsonObject[])[] = [];
    for (let next: string | null = id; next !== null; ) {
      const { items, previous }: StoredResponse = this.find(next, owner);
      turns.push(items);
      next = previous;
    }
    return turns.reverse().flat();
  }

  /** Returns the item of an `item_reference`; null if it is not stored. */
  item(id: string, owner: string): JsonObject | null {
    const entry = this.items.get(id);
    const isOwn = entry && this.responses.get(entry.response)?.owner === owner;
    return isOwn ? entry.item : null;
  }

  private drop(id: string): void {
    const stored = this.responses.get(id);
    if (!stored) return;
    this.responses.delete(id);
    this.bytes -= stored.bytes;
    for (const { id: item } of stored.items) {
      if (typeof item === 'string' && this.items.get(item)?.response === id)
        this.items.delete(item);
    }
  }
}

function notFoundError(id: string): ApiError {
  const message = `response: expected the id of a response in memory, got ${JSON.stringify(id.slice(0, 60))}. Send the whole conversation as input.`;
  return new ApiError(404, message, { code: 'response_not_found' });
}
