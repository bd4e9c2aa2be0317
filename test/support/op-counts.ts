// Counts the ops that run while a function runs.
import { observeKernels } from '../../lib/runtime/call.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';

/** How often each op runs in `body`. */
export function countOps(body: () => void): Record<string, number> {
  const counts: Record<string, number> = {};
  observeKernels((op) => () => {
    const name = kernels.opNames[op] as string;
    counts[name] = (counts[name] ?? 0) + 1;
  });
  try {
    body();
  } finally {
    observeKernels(null);
  }
  return counts;
}
