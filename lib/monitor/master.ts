// MonitorMaster: several monitors as one, each failing for itself. Named after DeepSpeed's.
import type { Monitor, MonitorEvent } from './monitor.js';

/** Owns its monitors. One that throws is closed and left out from then on, with one warning. */
export class MonitorMaster implements Monitor {
  private monitors: readonly Monitor[];

  constructor(monitors: readonly Monitor[]) {
    this.monitors = monitors;
  }

  /** Whether anybody listens. */
  get enabled(): boolean {
    return this.monitors.length > 0;
  }

  /** Hands the events on to every monitor. */
  write(events: readonly MonitorEvent[]): void {
    for (const monitor of this.monitors) {
      try {
        monitor.write(events);
      } catch (error) {
        this.drop(monitor, error);
      }
    }
  }

  async flush(): Promise<void> {
    const flushOne = (monitor: Monitor): Promise<void> =>
      monitor.flush().catch((error) => this.drop(monitor, error));
    await Promise.all(this.monitors.map(flushOne));
  }

  close(): void {
    for (const monitor of this.monitors) {
      try {
        monitor.close();
      } catch (error) {
        this.drop(monitor, error);
      }
    }
    this.monitors = [];
  }

  private drop(monitor: Monitor, error: unknown): void {
    this.monitors = this.monitors.filter((other) => other !== monitor);
    const reason = error instanceof Error ? error.message : String(error);
    const warning = `${monitor.constructor.name} failed and is switched off: ${reason}`;
    process.emitWarning(warning, { type: 'DsWarning', code: 'DS_MONITOR' });
    try {
      monitor.close();
    } catch {
      // It has failed already; its reason was given.
    }
  }
}
