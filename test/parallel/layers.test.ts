// Cut layers on 2, 3 and 4 ranks equal whole ones: outputs, gradients, first values, dropout, losses.
import { reportsOf, runRanks } from '../comm/ranks.js';

interface Report {
  failures: string[];
  count: number;
}

test.each([2, 3, 4])('layers, collectives and losses on %i ranks', async (ranks) => {
  const reports = reportsOf<Report>(await runRanks('../parallel/layers-process', ranks));
  expect(reports.flatMap(({ failures }) => failures).slice(0, 12)).toEqual([]);
  for (const { count } of reports) expect(count).toBeGreaterThan(100);
});
