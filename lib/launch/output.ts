// Where the lines of ranks go.

export type StreamName = 'out' | 'err';

/** Takes the lines of ranks. */
export interface LineSink {
  line(rank: number, stream: StreamName, text: string): void;
  /** Nothing comes any more: passes on what it held back. */
  end(): void;
}

/** Writes one line to a stream of this process. */
export type WriteLine = (stream: StreamName, text: string) => void;
