// Events from a node's launcher to the starting launcher: one JSON text a line.

import type { LineSink, StreamName } from './lines.js';
import type { Exit } from './member.js';

export type NodeEvent =
  | { line: [rank: number, stream: StreamName, text: string] }
  /** The node's first failure. */
  | { failed: Exit };

export function encodeEvent(event: NodeEvent): string {
  return `${JSON.stringify(event)}\n`;
}

/** Returns null for other lines, for example output of a shell's start-up files. */
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

/** A sink that passes lines on as events. */
export class EventSink implements LineSink {
  constructor(private readonly write: (text: string) => void) {}

  line(rank: number, stream: StreamName, text: string): void {
    this.write(encodeEvent({ line: [rank, stream, text] }));
  }

  end(): void {}
}
