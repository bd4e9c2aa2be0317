// Runs device-independent cases as jest tests on the CPU.
import { cpu } from '../../lib/runtime/device.js';
import type { Case } from './case.js';

export function testOnCpu(title: string, cases: readonly Case[]): void {
  describe(title, () => {
    for (const { name, run, skip } of cases) {
      if (skip?.(cpu())) test.skip(name, () => {});
      else test(name, async () => run(cpu()));
    }
  });
}
