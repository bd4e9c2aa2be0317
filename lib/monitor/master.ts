// Sends the metrics of a run to several monitors. A failure of one monitor does not affect the
// others.

import { valueError } from '../runtime/input-errors.js';
import { definePythonNames } from '../runtime/python-names.js';
import type { Monitor, MonitorEvent } from './monitor.js';

/**
 * Sends events to several monitors, and owns them. Named after DeepSpeed's MonitorMaster.
 *
 * If a monitor throws or its promise rejects, it is closed and removed, with one warning.
 */
export class MonitorMaster implements Monitor {
  static {
    definePythonNames(MonitorMaster, { label: 'monitor', others: { write_events: 'write()' } });
  }

  private monitors: readonly Monitor[];
  private readonly dropped = new Set<Monitor>();

  /** Throws DS_ARGUMENT if `monitors` is not a list, for example a section of the configuration. */
  constructor(monitors: readonly Monitor[]) {
    if (!Array.isArray(monitors)) {
      const hint = 'new monitor.MonitorMaster([new monitor.CsvMonitor({ outputPath, jobName })]).';
      throw valueError('MonitorMaster', 'a list of monitors', monitors, hint);
    }
    this.monitors = monitors;
  }

  /** Whether a monitor is active. */
  get enabled(): boolean {
    return this.monitors.length > 0;
  }

  /** Passes the events to every monitor. */
  write(events: readonly MonitorEvent[]): void {
    for (const monitor of this.monitors) void this.attempt(monitor, () => monitor.write(events));
  }

  async flush(): Promise<void> {
    const flushOne = (monitor: Monitor): Promise<void> =>
      this.attempt(monitor, () => monitor.flush());
    await Promise.all(this.monitors.map(flushOne));
  }

  close(): void {
    for (const monitor of this.monitors) void this.attempt(monitor, () => monitor.close());
    this.monitors = [];
  }

  /** Removes a monitor that throws or rejects. */
  private async attempt(monitor: Monitor, call: () => unknown): Promise<void> {
    try {
      await call();
    } catch (error) {
      this.drop(monitor, error);
    }
  }

  private drop(monitor: Monitor, error: unknown): void {
    if (this.dropped.has(monitor)) return; // An earlier write has already failed.
    this.dropped.add(monitor);
    this.monitors = this.monitors.filter((other) => other !== monitor);
    const reason = error instanceof Error ? error.message : String(error);
    const warning = `${monitor.constructor.name} failed and is switched off: ${reason}`;
    process.emitWarning(warning, { type: 'DsWarning', code: 'DS_MONITOR' });
    void this.attempt(monitor, () => monitor.close()); // The warning has the reason.
  }
}
