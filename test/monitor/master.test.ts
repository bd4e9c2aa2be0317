// Tests that MonitorMaster sends all events to all monitors, and that a failing monitor does not
// affect the others.
import { type Monitor, MonitorMaster } from '../../lib/monitor/index.js';

class Recorder implements Monitor {
  readonly calls: string[] = [];

  write(events: readonly { name: string }[]): void {
    this.calls.push(`write ${events.map(({ name }) => name)}`);
  }

  async flush(): Promise<void> {
    this.calls.push('flush');
  }

  close(): void {
    this.calls.push('close');
  }
}

class FullDisk extends Recorder {
  override write(): void {
    super.write([]);
    throw new Error('no space left');
  }
}

class LateFullDisk extends Recorder {
  override async flush(): Promise<void> {
    throw new Error('no space left');
  }
}

class LostService extends Recorder {
  override async write(): Promise<void> {
    super.write([]);
    throw new Error('no space left');
  }
}

/** In JavaScript, without the declared promise. */
class PlainFlush extends Recorder {
  override flush(): never {
    throw new Error('no space left');
  }
}

const events = [{ name: 'x', value: 1, step: 1 }];

test('MonitorMaster writes to, flushes and closes each monitor', async () => {
  const monitors = [new Recorder(), new Recorder()];
  const master = new MonitorMaster(monitors);
  expect(master.enabled).toBe(true);
  master.write(events);
  await master.flush();
  master.close();
  for (const { calls } of monitors) expect(calls).toEqual(['write x', 'flush', 'close']);
  expect(master.enabled).toBe(false);
});

test.each([
  ['write', new FullDisk(), ['write ', 'close']],
  ['flush', new LateFullDisk(), ['write x', 'close']],
  ['a promise of write', new LostService(), ['write ', 'flush', 'close']],
  ['flush, without a promise', new PlainFlush(), ['write x', 'close']],
] as const)(
  'a monitor that fails in %s is dropped with a warning',
  async (_where, broken, calls) => {
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const healthy = new Recorder();
    const master = new MonitorMaster([broken, healthy]);
    master.write(events);
    await master.flush();
    master.write(events);
    expect(broken.calls).toEqual(calls);
    expect(healthy.calls).toEqual(['write x', 'flush', 'write x']);
    expect(warn.mock.calls).toEqual([
      [
        `${broken.constructor.name} failed and is switched off: no space left`,
        { type: 'DsWarning', code: 'DS_MONITOR' },
      ],
    ]);
    warn.mockRestore();
  },
);

test('rejected promises give one warning, and flush() may return none', async () => {
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const plain = { write() {}, flush() {}, close() {} } as unknown as Monitor;
  const master = new MonitorMaster([new LostService(), plain]);
  master.write(events);
  master.write(events);
  await master.flush();
  master.close();
  expect(warn).toHaveBeenCalledTimes(1);
  warn.mockRestore();
});
