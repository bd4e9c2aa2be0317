// What a place that keeps the numbers of a run has to offer: the interface of every monitor.

/** One value of one metric. */
export interface MonitorEvent {
  /** DeepSpeed's names are paths: "Train/Samples/lr". */
  name: string;
  /** The number itself. */
  value: number;
  /** The x axis; DeepSpeed counts global samples. */
  step: number;
}

/**
 * Receives events in the order of training, from the training thread: write() should neither block
 * for long nor keep the array. Whatever it throws ends this monitor, not the run.
 */
export interface Monitor {
  /** Takes note of events; it may keep them until flush(). */
  write(events: readonly MonitorEvent[]): void;
  /** Resolves when everything written so far would survive a crash of the machine. */
  flush(): Promise<void>;
  /** No write() follows. */
  close(): void;
}
