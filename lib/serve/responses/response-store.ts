// Keeps responses and their items for later requests of the same client, within bounds.
import type { JsonObject } from '../../../types/json.js';
import { ApiError } from '../api-error.js';

/** A response with the items of its turn. */
export interface StoredResponse {
  id: string;
  /** The client: other clients do not find it. */
  owner: string;
  /** The response before it in the conversation. */
  previous: string | null;
  /** Items of the request, then items of the answer. */
  items: readonly JsonObject[];
  /** The response as it was sent. */
  response: JsonObject;
}

/** Responses in memory, and bytes of all of them. */
const [MAX_RESPONSES, MAX_BYTES] = [4096, 64 * 2 ** 20];

/** The least recently used responses are dropped first. */
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

  /** Throws 404 for an unknown response, and for one of another client. */
  find(id: string, owner: string): StoredResponse {
    const found = this.responses.get(id);
    if (!found || found.owner !== owner) throw notFound(id);
    this.responses.delete(id);
    this.responses.set(id, found);
    return found;
  }

  /** Throws as find() does. */
  delete(id: string, owner: string): void {
    this.find(id, owner);
    this.drop(id);
  }

  /** All items of a conversation up to the response `id`, oldest first. Throws as find() does. */
  conversation(id: string, owner: string): JsonObject[] {
    const turns: (readonly JsonObject[])[] = [];
    for (let next: string | null = id; next !== null; ) {
      const { items, previous }: StoredResponse = this.find(next, owner);
      turns.push(items);
      next = previous;
    }
    return turns.reverse().flat();
  }

  /** The item of an `item_reference`; null if it is not in memory. */
  item(id: string, owner: string): JsonObject | null {
    const found = this.items.get(id);
    const isOwn = found && this.responses.get(found.response)?.owner === owner;
    return isOwn ? found.item : null;
  }

  private drop(id: string): void {
    const found = this.responses.get(id);
    if (!found) return;
    this.responses.delete(id);
    this.bytes -= found.bytes;
    for (const { id: item } of found.items) {
      if (typeof item === 'string' && this.items.get(item)?.response === id)
        this.items.delete(item);
    }
  }
}

function notFound(id: string): ApiError {
  const message = `response: expected the id of a response in memory, got ${JSON.stringify(id.slice(0, 60))}. Send the whole conversation as input.`;
  return new ApiError(404, message, { code: 'response_not_found' });
}
