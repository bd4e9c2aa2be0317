// Events that the launcher of a node sends to the starting launcher, as one JSON text per line.

import type { LineSink, StreamName } from './lines.js';
import type { Exit } from './member.js';

export type NodeEvent =
  | { line: [rank: number, stream: StreamName, text: string] }
  /** The node's first failure. */
  | { failed: Exit };

export function encodeEvent(event: NodeEvent): string {
  return `${JSON.stringify(event)}\n`;
}

/**
 * Parses an event. Returns null for other lines, for example output of a shell's start-up files.
 */
export function decodeEvent(line: string): NodeEvent | null {
  try {
    const event = JSON.parse(line) as NodeEvent;
    return typeof event === 'object' && event && ('line' in event || 'failed' in event)
      ? event
      : null;
  } catch {
    return null;
  }
}

/** Sends lines as events. */
export class EventSink implements LineSink {
  constructor(private readonly write: (text: string) => void) {}

  line(rank: number, stream: StreamName, text: string): void {
    this.write(encodeEvent({ line: [rank, stream, text] }));
  }

  end(): void {}
}
