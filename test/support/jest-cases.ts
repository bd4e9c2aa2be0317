// Runs device-independent cases as jest tests on the CPU.
import { cpu } from '../../lib/runtime/device.js';
import { type Case, whySkipped } from './case.js';

export function testOnCpu(title: string, cases: readonly Case[]): void {
  describe(title, () => {
    for (const one of cases) {
      const { name, run } = one;
      if (whySkipped(one, cpu())) test.skip(name, () => {});
      else test(name, async () => run(cpu()));
    }
  });
}
