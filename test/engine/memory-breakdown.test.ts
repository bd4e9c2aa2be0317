// Tests the memory breakdown: bytes by owner, and the lines before and after each phase.
import { MemoryBreakdown, measureMemory } from '../../lib/engine/watch/memory-breakdown.js';
import { untimed } from '../../lib/engine/watch/step-watch.js';

afterEach(() => jest.restoreAllMocks());

describe('memory by owner', () => {
  const shard = (weights: number, gradients: number, host: number) => ({
    bytes: { weights, gradients },
    storage: { bytes: { host } },
    unit: { bytes: { weights: 10 * weights, gradients: 10 * gradients } },
  });
  const owners = (kind: 'cpu' | 'cuda') => {
    const device = {
      kind,
      name: `${kind}:0`,
      memory: { inUse: 100 * 2 ** 20, peakInUse: 200 * 2 ** 20 },
      resetPeaks: jest.fn(),
    };
    const stage = { partitions: [shard(1, 2, 3)], frozen: [shard(4, 0, 5)], slotBytes: 7 };
    return { device, stage, state: { bytes: { device: 1000, host: 2000, disk: 0 } } };
  };

  test('adds up: what no part holds is other, and pinned memory of a CPU is its own', () => {
    const use = (kind: 'cpu' | 'cuda') => measureMemory(owners(kind) as never);
    const pinned = 2000 + 3 + 5 + 7;
    const known = 55 + 22 + 1000;
    expect(use('cuda')).toMatchObject({
      device: { weights: 55, gradients: 22, optimizer: 1000, other: 100 * 2 ** 20 - known },
      host: { pinned },
    });
    expect(use('cpu').device.other).toBe(100 * 2 ** 20 - known - pinned);
    expect(use('cpu').device).toMatchObject({ inUse: 100 * 2 ** 20, peak: 200 * 2 ** 20 });
    expect(use('cpu').host.resident).toBeGreaterThan(0);
  });

  test('is printed before and after each phase, but for reductions, with the peak between', () => {
    const lines: string[] = [];
    jest.spyOn(process.stdout, 'write').mockImplementation((text) => {
      lines.push(String(text));
      return true;
    });
    const options = owners('cuda');
    const timer = new MemoryBreakdown(untimed, options as never);
    expect([timer.time('forward', () => 5), timer.time('reduce', () => 6)]).toEqual([5, 6]);
    timer.time('step', () => {});
    expect(lines.map((line) => line.split(' | ')[0])).toEqual([
      'memory after initialization',
      'memory before forward',
      'memory after forward',
      'memory before step',
      'memory after step',
    ]);
    expect(lines[1]).toMatch(/ \| cuda:0: 100\.0 MiB, peak 200\.0 MiB \| weights: 0\.0 MiB \| /);
    expect(lines[1]?.endsWith('\n')).toBe(true);
    expect(options.device.resetPeaks).toHaveBeenCalledTimes(5);
  });
});
